#include <string_view>

#include "engine/models/architectures.h"
#include "engine/models/transformer_fields.h"

// Llama (arXiv 2302.13971, 2407.21783): RMSNorm before attention and before a SwiGLU network, RoPE,
// grouped-query attention. Also Llama 2, 3, 3.1, 3.2, SmolLM2 and DeepSeek-R1-Distill-Llama.
//
//   biases         none, unless `attention_bias` or `mlp_bias` ask for them
//   head           tied to the embedding when `tie_word_embeddings` says so
//   attention      full; in GGUF files, which call Mistral "llama" too, a window where one is given
//   RoPE scaling   none, linear, llama3, yarn

namespace tokenbutler {
namespace {

absl::Status ReadHf(const ConfigFields& fields, ModelConfig* config) {
  RETURN_IF_ERROR(
      ReadHfTransformer(fields, {.max_position = 2048, .kv_heads_default_to_heads = true}, config));
  RETURN_IF_ERROR(ReadOptionalBool(fields, "attention_bias", &config->qkv_bias));
  config->o_bias = config->qkv_bias;
  return ReadOptionalBool(fields, "mlp_bias", &config->mlp_bias);
}

absl::Status ReadGguf(const ConfigFields& fields, ModelConfig* config) {
  RETURN_IF_ERROR(ReadGgufTransformer(fields, "llama", config));
  config->qkv_bias = GgufHasBias(fields, "attn_q");
  config->o_bias = GgufHasBias(fields, "attn_output");
  config->mlp_bias = GgufHasBias(fields, "ffn_gate");
  int window = 0;
  RETURN_IF_ERROR(ReadOptionalInt(fields, "llama.attention.sliding_window", {0, 1 << 28}, &window));
  config->sliding_window.assign(config->sliding_window.size(), window);
  return absl::OkStatus();
}

}  // namespace

const Architecture& LlamaArchitecture() {
  static constexpr Architecture kLlama = {
      .name = "llama",
      .hf_model_type = "llama",
      .hf_class = "LlamaForCausalLM",
      .gguf_name = "llama",
      .gguf_interleaves_qk = true,
      .read_hf = ReadHf,
      .read_gguf = ReadGguf,
  };
  return kLlama;
}

}  // namespace tokenbutler
