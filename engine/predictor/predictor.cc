#include "engine/predictor/predictor.h"

#include <cmath>
#include <cstring>

#include "base/enum_names.h"

namespace tokenbutler {
namespace {

constexpr EnumNames<PredictorKind, 3> kKinds = {{{"tokenbutler", PredictorKind::kTokenButler},
                                                 {"lookahead", PredictorKind::kLookahead},
                                                 {"pca", PredictorKind::kPca}}};
constexpr EnumNames<ScorePooling, 4> kPoolings = {{{"max_logit", ScorePooling::kMaxLogit},
                                                   {"max_lse", ScorePooling::kMaxLse},
                                                   {"max_softmax", ScorePooling::kMaxSoftmax},
                                                   {"mean_softmax", ScorePooling::kMeanSoftmax}}};
constexpr EnumNames<PredictorInput, 2> kInputs = {
    {{"before_norm", PredictorInput::kBeforeNorm}, {"after_norm", PredictorInput::kAfterNorm}}};

absl::Status CheckRange(std::string_view field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidArgumentError("{} is {}, must be in [{}, {}]", field, value, least, most);
}

absl::Status CheckSize(std::string_view field, size_t size, int64_t wanted) {
  if (size == static_cast<size_t>(wanted)) return absl::OkStatus();
  return InvalidArgumentError("{} has {} elements, must have {}", field, size, wanted);
}

absl::Status CheckMatrix(std::string_view field, const PredictorMatrix& matrix, int64_t elements) {
  if (matrix.dtype != DType::kBF16 && matrix.dtype != DType::kF32) {
    return InvalidArgumentError("{} is {}, must be bfloat16 or float32", field,
                                DTypeName(matrix.dtype));
  }
  return CheckSize(field, matrix.bytes.size() / DTypeBytes(matrix.dtype), elements);
}

absl::Status CheckFingerprint(const ModelFingerprint& f) {
  RETURN_IF_ERROR(CheckRange("num_layers", f.num_layers, 1, 1024));
  RETURN_IF_ERROR(CheckRange("hidden_size", f.hidden_size, 1, 1 << 16));
  RETURN_IF_ERROR(CheckRange("intermediate_size", f.intermediate_size, 1, 1 << 20));
  RETURN_IF_ERROR(CheckRange("num_heads", f.num_heads, 1, 1024));
  RETURN_IF_ERROR(CheckRange("num_kv_heads", f.num_kv_heads, 1, f.num_heads));
  RETURN_IF_ERROR(CheckRange("head_dim", f.head_dim, 2, 1024));
  if (f.num_heads % f.num_kv_heads != 0 || f.group_size() > 64) {
    return InvalidArgumentError("num_heads is {}, must be 1 to 64 times num_kv_heads, {}",
                                f.num_heads, f.num_kv_heads);
  }
  return CheckSize("rope_inverse_frequencies", f.rope_inverse_frequencies.size(), f.head_dim / 2);
}

absl::Status CheckProjectedDim(const Predictor& p) {
  if (p.projected_dim == 0) {
    if (p.kind == PredictorKind::kLookahead && p.correction_rank > 0) return absl::OkStatus();
    return InvalidArgumentError(
        "projected_dim is 0, must be in [4, 128] unless kind is lookahead and correction_rank "
        "above 0");
  }
  RETURN_IF_ERROR(CheckRange("projected_dim", p.projected_dim, 4, 128));
  if (p.projected_dim % 4 == 0) return absl::OkStatus();
  return InvalidArgumentError("projected_dim is {}, must be a multiple of 4", p.projected_dim);
}

}  // namespace

std::string_view PredictorKindName(PredictorKind kind) { return EnumName(kKinds, kind); }
absl::StatusOr<PredictorKind> ParsePredictorKind(std::string_view name) {
  return ParseEnum(kKinds, "kind", name);
}
std::string_view ScorePoolingName(ScorePooling pooling) { return EnumName(kPoolings, pooling); }
absl::StatusOr<ScorePooling> ParseScorePooling(std::string_view name) {
  return ParseEnum(kPoolings, "pooling", name);
}
std::string_view PredictorInputName(PredictorInput input) { return EnumName(kInputs, input); }
absl::StatusOr<PredictorInput> ParsePredictorInput(std::string_view name) {
  return ParseEnum(kInputs, "input", name);
}

PredictorMatrix PredictorMatrix::FromFloats(const std::vector<float>& values, DType dtype) {
  PredictorMatrix matrix{.dtype = dtype, .bytes = {}};
  matrix.bytes.resize(values.size() * DTypeBytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(matrix.bytes.data() + 4 * i, &values[i], 4);
    } else {
      const BF16 rounded = ToBF16(values[i]);
      std::memcpy(matrix.bytes.data() + 2 * i, &rounded, 2);
    }
  }
  return matrix;
}

float Predictor::score_scale() const {
  const int dim = kind == PredictorKind::kPca ? fingerprint.head_dim : projected_dim;
  return 1.0f / std::sqrt(static_cast<float>(dim));
}

absl::Status Predictor::ValidateNumbers() const {
  RETURN_IF_ERROR(CheckFingerprint(fingerprint));
  const int most_rank = kind == PredictorKind::kLookahead ? 256 : 0;
  RETURN_IF_ERROR(CheckRange("correction_rank", correction_rank, 0, most_rank));
  RETURN_IF_ERROR(CheckProjectedDim(*this));
  if (kind != PredictorKind::kPca) {
    RETURN_IF_ERROR(
        CheckRange("layers_per_predictor", layers_per_predictor, 1, fingerprint.num_layers));
  }
  if (kind != PredictorKind::kTokenButler) return absl::OkStatus();
  return CheckRange("hidden_dim", hidden_dim, 1, 1 << 16);
}

absl::Status Predictor::Validate() const {
  RETURN_IF_ERROR(ValidateNumbers());
  const ModelFingerprint& f = fingerprint;
  const int64_t matrix = int64_t{f.num_layers} * f.head_dim * projected_dim;
  RETURN_IF_ERROR(CheckSize("key_projection", key_projection.size(), matrix * f.num_kv_heads));
  if (!early_projection.empty()) {
    RETURN_IF_ERROR(CheckSize("early_projection", early_projection.size(),
                              kind == PredictorKind::kLookahead ? matrix * f.num_heads : 0));
  }
  if (!late_projection.empty()) {
    RETURN_IF_ERROR(CheckSize("late_projection", late_projection.size(),
                              kind == PredictorKind::kPca ? 0 : matrix * f.num_heads));
  }
  const int64_t ranks = int64_t{f.num_layers} * correction_rank;
  RETURN_IF_ERROR(CheckMatrix("query_correction.down", correction_down, ranks * f.hidden_size));
  RETURN_IF_ERROR(
      CheckMatrix("query_correction.up", correction_up, ranks * f.num_heads * f.head_dim));
  if (kind != PredictorKind::kTokenButler) return CheckSize("producers", producers.size(), 0);
  RETURN_IF_ERROR(CheckSize("producers", producers.size(), num_producers()));
  const int64_t num_outputs = int64_t{layers_per_predictor} * f.num_heads * projected_dim;
  for (const PredictorProducer& producer : producers) {
    RETURN_IF_ERROR(CheckSize("norm.weight", producer.norm_weight.size(), f.hidden_size));
    RETURN_IF_ERROR(CheckSize("norm.bias", producer.norm_bias.size(), f.hidden_size));
    RETURN_IF_ERROR(
        CheckMatrix("input.weight", producer.input, int64_t{hidden_dim} * f.hidden_size));
    RETURN_IF_ERROR(CheckMatrix("output.weight", producer.output, num_outputs * hidden_dim));
  }
  return absl::OkStatus();
}

}  // namespace tokenbutler
