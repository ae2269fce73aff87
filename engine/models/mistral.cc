#include <string_view>

#include "engine/models/architectures.h"
#include "engine/models/transformer_fields.h"

// Mistral 7B (arXiv 2310.06825) and Nemo: Llama without biases, with a sliding window.
//
//   biases         none
//   head           its own, unless `tie_word_embeddings` says otherwise
//   attention      every layer sees `sliding_window` tokens, itself included; all when it is null
//   GGUF           converters write Mistral as "llama"; see llama.cc

namespace tokenbutler {
namespace {

constexpr int kDefaultWindow = 4096;  // of transformers' MistralConfig, when the field is absent

absl::Status ReadHf(const ConfigFields& fields, ModelConfig* config) {
  RETURN_IF_ERROR(ReadHfTransformer(fields, {.max_position = 131072}, config));
  int window = fields.Has("sliding_window") ? 0 : kDefaultWindow;
  RETURN_IF_ERROR(ReadOptionalInt(fields, "sliding_window", {1, 1 << 28}, &window));
  config->sliding_window.assign(config->sliding_window.size(), window);
  return absl::OkStatus();
}

absl::Status ReadGguf(const ConfigFields& fields, ModelConfig* config) {
  return LlamaArchitecture().read_gguf(fields, config);
}

}  // namespace

const Architecture& MistralArchitecture() {
  static constexpr Architecture kMistral = {
      .name = "mistral",
      .hf_model_type = "mistral",
      .hf_class = "MistralForCausalLM",
      .gguf_name = "",
      .gguf_interleaves_qk = true,
      .read_hf = ReadHf,
      .read_gguf = ReadGguf,
  };
  return kMistral;
}

}  // namespace tokenbutler
