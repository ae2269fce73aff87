#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace tokenbutler {

// Where a step is in a layer.
enum class LayerPoint : uint8_t {
  kInput,           // nothing of the layer has run
  kAfterAttention,  // the residual has the attention's part; the MLP is next
};

std::string_view LayerPointName(LayerPoint point);  // "after_attention"
absl::StatusOr<LayerPoint> ParseLayerPoint(std::string_view name);

}  // namespace tokenbutler
