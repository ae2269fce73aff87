#include "engine/predictor/layer_point.h"

#include "base/enum_names.h"

namespace tokenbutler {
namespace {

constexpr EnumNames<LayerPoint, 2> kPoints = {
    {{"input", LayerPoint::kInput}, {"after_attention", LayerPoint::kAfterAttention}}};

}  // namespace

std::string_view LayerPointName(LayerPoint point) { return EnumName(kPoints, point); }

absl::StatusOr<LayerPoint> ParseLayerPoint(std::string_view name) {
  return ParseEnum(kPoints, "lookahead_point", name);
}

}  // namespace tokenbutler
