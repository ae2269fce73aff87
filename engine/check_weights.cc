#include "engine/check_weights.h"

#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "base/status.h"

namespace tokenbutler {
namespace {

absl::Status Check(std::string_view name, const TensorView& tensor, DType dtype,
                   absl::Span<const int64_t> shape) {
  bool fits = !tensor.empty() && tensor.dtype == dtype && tensor.rank == shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) fits = tensor.shape[i] == shape[i];
  if (fits) return absl::OkStatus();
  return InvalidArgumentError("{} is {} of {} dimensions [{}, {}], must be {} [{}]", name,
                              tensor.empty() ? "missing" : DTypeName(tensor.dtype), tensor.rank,
                              tensor.shape[0], tensor.shape[1], DTypeName(dtype),
                              fmt::join(shape, ", "));
}

absl::Status CheckBias(std::string_view name, const TensorView& tensor, int64_t size) {
  return tensor.empty() ? absl::OkStatus() : Check(name, tensor, DType::kF32, {size});
}

absl::Status CheckLayer(const ModelConfig& config, const LayerWeights& layer, DType dtype) {
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t q = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv = int64_t{config.num_kv_heads} * config.head_dim;
  RETURN_IF_ERROR(Check("input_norm", layer.input_norm, DType::kF32, {hidden}));
  RETURN_IF_ERROR(Check("q_proj", layer.q_proj, dtype, {q, hidden}));
  RETURN_IF_ERROR(Check("k_proj", layer.k_proj, dtype, {kv, hidden}));
  RETURN_IF_ERROR(Check("v_proj", layer.v_proj, dtype, {kv, hidden}));
  RETURN_IF_ERROR(CheckBias("q_bias", layer.q_bias, q));
  RETURN_IF_ERROR(CheckBias("k_bias", layer.k_bias, kv));
  RETURN_IF_ERROR(CheckBias("v_bias", layer.v_bias, kv));
  RETURN_IF_ERROR(Check("o_proj", layer.o_proj, dtype, {hidden, q}));
  RETURN_IF_ERROR(CheckBias("o_bias", layer.o_bias, hidden));
  RETURN_IF_ERROR(Check("post_attention_norm", layer.post_attention_norm, DType::kF32, {hidden}));
  RETURN_IF_ERROR(Check("gate_proj", layer.gate_proj, dtype, {intermediate, hidden}));
  RETURN_IF_ERROR(Check("up_proj", layer.up_proj, dtype, {intermediate, hidden}));
  RETURN_IF_ERROR(Check("down_proj", layer.down_proj, dtype, {hidden, intermediate}));
  RETURN_IF_ERROR(CheckBias("gate_bias", layer.gate_bias, intermediate));
  RETURN_IF_ERROR(CheckBias("up_bias", layer.up_bias, intermediate));
  return CheckBias("down_bias", layer.down_bias, hidden);
}

absl::Status CheckConfig(const ModelConfig& config) {
  const auto positive = [](std::string_view name, int value) {
    return value > 0 ? absl::OkStatus()
                     : InvalidArgumentError("{} is {}, must be positive", name, value);
  };
  RETURN_IF_ERROR(positive("num_layers", config.num_layers));
  RETURN_IF_ERROR(positive("hidden_size", config.hidden_size));
  RETURN_IF_ERROR(positive("intermediate_size", config.intermediate_size));
  RETURN_IF_ERROR(positive("num_heads", config.num_heads));
  RETURN_IF_ERROR(positive("num_kv_heads", config.num_kv_heads));
  RETURN_IF_ERROR(positive("head_dim", config.head_dim));
  RETURN_IF_ERROR(positive("vocab_size", config.vocab_size));
  if (config.num_heads % config.num_kv_heads != 0) {
    return InvalidArgumentError("num_heads is {}, must be a multiple of num_kv_heads ({})",
                                config.num_heads, config.num_kv_heads);
  }
  if (!config.sliding_window.empty() && config.sliding_window.size() != config.num_layers) {
    return InvalidArgumentError("sliding_window has {} entries, must have num_layers = {}",
                                config.sliding_window.size(), config.num_layers);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckWeights(const ModelConfig& config, const ModelWeights& weights) {
  RETURN_IF_ERROR(CheckConfig(config));
  const DType dtype = weights.lm_head.dtype;
  if (dtype != DType::kBF16 && dtype != DType::kF32) {
    return InvalidArgumentError("lm_head is {}, must be bfloat16 or float32", DTypeName(dtype));
  }
  const int64_t vocab = config.vocab_size, hidden = config.hidden_size;
  RETURN_IF_ERROR(Check("token_embedding", weights.token_embedding, dtype, {vocab, hidden}));
  RETURN_IF_ERROR(Check("final_norm", weights.final_norm, DType::kF32, {hidden}));
  RETURN_IF_ERROR(Check("lm_head", weights.lm_head, dtype, {vocab, hidden}));
  if (weights.layers.size() != config.num_layers) {
    return InvalidArgumentError("the weights have {} layers, must have num_layers = {}",
                                weights.layers.size(), config.num_layers);
  }
  for (int l = 0; l < config.num_layers; ++l) {
    const absl::Status status = CheckLayer(config, weights.layers[l], dtype);
    if (!status.ok()) return Annotate(status, fmt::format("layer {}", l));
  }
  return absl::OkStatus();
}

}  // namespace tokenbutler
