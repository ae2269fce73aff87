#include <string>
#include <string_view>
#include <vector>

#include "engine/models/architectures.h"
#include "engine/models/transformer_fields.h"

// Qwen2 and Qwen2.5 (arXiv 2407.10671), DeepSeek-R1-Distill-Qwen: Llama with biases on Q, K and V.
//
//   biases         q, k and v, always; no others
//   head           tied to the embedding when `tie_word_embeddings` says so
//   attention      full, unless `use_sliding_window`: then the layers that `layer_types` calls
//                  sliding_attention, or those from `max_window_layers` on, see `sliding_window`
//   RoPE scaling   none, linear, llama3, yarn

namespace tokenbutler {
namespace {

// Defaults of transformers' Qwen2Config.
constexpr int kDefaultWindow = 4096;
constexpr int kDefaultMaxWindowLayers = 28;

// Which layers slide, by name or by number.
absl::StatusOr<std::vector<bool>> SlidingLayers(const ConfigFields& fields, bool use_window,
                                                int num_layers) {
  std::vector<bool> slides(static_cast<size_t>(num_layers), false);
  ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> types,
                   fields.FindStrings("layer_types"));
  if (!types.has_value()) {
    int first = kDefaultMaxWindowLayers;
    RETURN_IF_ERROR(ReadOptionalInt(fields, "max_window_layers", {0, 1 << 20}, &first));
    for (int layer = first; use_window && layer < num_layers; ++layer) slides[layer] = true;
    return slides;
  }
  if (types->size() != slides.size()) {
    return InvalidArgumentError("layer_types has {} entries, must have one per layer: {}",
                                types->size(), num_layers);
  }
  for (size_t layer = 0; layer < slides.size(); ++layer) {
    const std::string& type = (*types)[layer];
    if (type != "full_attention" && type != "sliding_attention") {
      return UnimplementedError("layer_types[{}] is '{}', which is not implemented", layer, type);
    }
    slides[layer] = type == "sliding_attention";
    if (slides[layer] && !use_window) {
      return InvalidArgumentError(
          "layer_types[{}] is 'sliding_attention', but use_sliding_window is false", layer);
    }
  }
  return slides;
}

absl::Status ReadHf(const ConfigFields& fields, ModelConfig* config) {
  RETURN_IF_ERROR(ReadHfTransformer(fields, {.max_position = 32768}, config));
  config->qkv_bias = true;
  bool use_window = false;
  RETURN_IF_ERROR(ReadOptionalBool(fields, "use_sliding_window", &use_window));
  int window = fields.Has("sliding_window") ? 0 : kDefaultWindow;
  RETURN_IF_ERROR(ReadOptionalInt(fields, "sliding_window", {1, 1 << 28}, &window));
  if (window == 0) use_window = false;  // "sliding_window": null
  ASSIGN_OR_RETURN(const std::vector<bool> slides,
                   SlidingLayers(fields, use_window, config->num_layers));
  for (size_t layer = 0; layer < slides.size(); ++layer) {
    config->sliding_window[layer] = slides[layer] ? window : 0;
  }
  return absl::OkStatus();
}

absl::Status ReadGguf(const ConfigFields& fields, ModelConfig* config) {
  RETURN_IF_ERROR(ReadGgufTransformer(fields, "qwen2", config));
  config->qkv_bias = true;
  int window = 0;
  RETURN_IF_ERROR(ReadOptionalInt(fields, "qwen2.attention.sliding_window", {0, 1 << 28}, &window));
  // GGUF does not say which layers slide; a window as long as the context says nothing at all.
  if (window > 0 && window < config->max_position) {
    return UnimplementedError(
        "qwen2.attention.sliding_window is {}, but the file does not say for which layers", window);
  }
  return absl::OkStatus();
}

}  // namespace

const Architecture& Qwen2Architecture() {
  static constexpr Architecture kQwen2 = {
      .name = "qwen2",
      .hf_model_type = "qwen2",
      .hf_class = "Qwen2ForCausalLM",
      .gguf_name = "qwen2",
      .gguf_interleaves_qk = false,
      .read_hf = ReadHf,
      .read_gguf = ReadGguf,
  };
  return kQwen2;
}

}  // namespace tokenbutler
