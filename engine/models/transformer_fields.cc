#include "engine/models/transformer_fields.h"

#include <string>

#include "engine/models/rope_config.h"

namespace tokenbutler {
namespace {

constexpr Bounds<int> kLayers = {1, 1024};
constexpr Bounds<int> kHeads = {1, 1024};
constexpr Bounds<int> kHeadDim = {2, 1024};
constexpr Bounds<int> kHidden = {1, 1 << 18};
constexpr Bounds<int> kIntermediate = {1, 1 << 22};
constexpr Bounds<int> kVocab = {1, 1 << 24};
constexpr Bounds<int> kPositions = {1, 1 << 28};
constexpr Bounds<float> kEps = {1e-12f, 0.1f};

// hidden_size / num_heads, where a file does not say head_dim.
absl::Status DeriveHeadDim(ModelConfig* config) {
  if (config->hidden_size % config->num_heads != 0) {
    return InvalidArgumentError(
        "the hidden size is {}, must be a multiple of the {} heads where no head size is given",
        config->hidden_size, config->num_heads);
  }
  config->head_dim = config->hidden_size / config->num_heads;
  return absl::OkStatus();
}

absl::Status RefuseOtherActivations(const ConfigFields& fields) {
  ASSIGN_OR_RETURN(const std::optional<std::string> activation, fields.FindString("hidden_act"));
  if (activation.value_or("silu") == "silu") return absl::OkStatus();
  return UnimplementedError("hidden_act is '{}', which is not implemented (silu is)", *activation);
}

absl::Status RefuseQuantised(const ConfigFields& fields) {
  if (!fields.Has("quantization_config")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::optional<std::string> method,
                   fields.FindString("quantization_config.quant_method"));
  return UnimplementedError(
      "quantization_config.quant_method is '{}': quantised checkpoints are only read as GGUF",
      method.value_or(""));
}

// The vocabulary is what the embedding has rows for; a vocab_size that disagrees is damage.
absl::Status ReadGgufVocabSize(const ConfigFields& fields, const std::string& arch,
                               ModelConfig* config) {
  const std::vector<int64_t> shape = fields.TensorShape("token_embd.weight");
  if (shape.size() != 2) {
    return InvalidArgumentError("tensor token_embd.weight is missing or not a matrix");
  }
  if (shape[0] > kVocab.max) {
    return InvalidArgumentError("token_embd.weight has {} rows, must have at most {}", shape[0],
                                kVocab.max);
  }
  config->vocab_size = static_cast<int>(shape[0]);
  int declared = config->vocab_size;
  RETURN_IF_ERROR(ReadOptionalInt(fields, arch + ".vocab_size", kVocab, &declared));
  if (declared == config->vocab_size) return absl::OkStatus();
  return InvalidArgumentError("{}.vocab_size is {}, but token_embd.weight has {} rows", arch,
                              declared, config->vocab_size);
}

absl::Status ReadGgufHeads(const ConfigFields& fields, const std::string& arch,
                           ModelConfig* config) {
  const std::string attention = arch + ".attention.";
  RETURN_IF_ERROR(ReadInt(fields, attention + "head_count", kHeads, &config->num_heads));
  config->num_kv_heads = config->num_heads;
  RETURN_IF_ERROR(
      ReadOptionalInt(fields, attention + "head_count_kv", kHeads, &config->num_kv_heads));
  if (!fields.Has(attention + "key_length")) {
    RETURN_IF_ERROR(DeriveHeadDim(config));
  } else {
    RETURN_IF_ERROR(ReadInt(fields, attention + "key_length", kHeadDim, &config->head_dim));
  }
  int value_length = config->head_dim, rotated = config->head_dim;
  RETURN_IF_ERROR(ReadOptionalInt(fields, attention + "value_length", kHeadDim, &value_length));
  RETURN_IF_ERROR(ReadOptionalInt(fields, arch + ".rope.dimension_count", kHeadDim, &rotated));
  if (value_length != config->head_dim || rotated != config->head_dim) {
    return UnimplementedError(
        "{} has keys of {}, values of {} and {} rotated channels: only equal sizes are implemented",
        arch, config->head_dim, value_length, rotated);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadHfTransformer(const ConfigFields& fields, const HfDefaults& defaults,
                               ModelConfig* config) {
  RETURN_IF_ERROR(RefuseQuantised(fields));
  RETURN_IF_ERROR(RefuseOtherActivations(fields));
  ASSIGN_OR_RETURN(const std::optional<std::string> name, fields.FindString("_name_or_path"));
  config->name = name.value_or("");
  RETURN_IF_ERROR(ReadInt(fields, "num_hidden_layers", kLayers, &config->num_layers));
  RETURN_IF_ERROR(ReadInt(fields, "hidden_size", kHidden, &config->hidden_size));
  RETURN_IF_ERROR(ReadInt(fields, "intermediate_size", kIntermediate, &config->intermediate_size));
  RETURN_IF_ERROR(ReadInt(fields, "vocab_size", kVocab, &config->vocab_size));
  RETURN_IF_ERROR(ReadInt(fields, "num_attention_heads", kHeads, &config->num_heads));
  config->num_kv_heads = config->num_heads;
  RETURN_IF_ERROR(
      defaults.kv_heads_default_to_heads
          ? ReadOptionalInt(fields, "num_key_value_heads", kHeads, &config->num_kv_heads)
          : ReadInt(fields, "num_key_value_heads", kHeads, &config->num_kv_heads));
  RETURN_IF_ERROR(ReadOptionalInt(fields, "head_dim", kHeadDim, &config->head_dim));
  if (config->head_dim == 0) RETURN_IF_ERROR(DeriveHeadDim(config));
  config->max_position = defaults.max_position;
  RETURN_IF_ERROR(
      ReadOptionalInt(fields, "max_position_embeddings", kPositions, &config->max_position));
  config->rms_norm_eps = 1e-6f;
  RETURN_IF_ERROR(ReadOptionalFloat(fields, "rms_norm_eps", kEps, &config->rms_norm_eps));
  RETURN_IF_ERROR(ReadOptionalBool(fields, "tie_word_embeddings", &config->tie_word_embeddings));
  config->sliding_window.assign(static_cast<size_t>(config->num_layers), 0);
  return ReadHfRope(fields, config);
}

absl::Status ReadGgufTransformer(const ConfigFields& fields, std::string_view arch_view,
                                 ModelConfig* config) {
  const std::string arch(arch_view);
  ASSIGN_OR_RETURN(const std::optional<std::string> name, fields.FindString("general.name"));
  config->name = name.value_or("");
  RETURN_IF_ERROR(ReadInt(fields, arch + ".block_count", kLayers, &config->num_layers));
  RETURN_IF_ERROR(ReadInt(fields, arch + ".embedding_length", kHidden, &config->hidden_size));
  RETURN_IF_ERROR(
      ReadInt(fields, arch + ".feed_forward_length", kIntermediate, &config->intermediate_size));
  RETURN_IF_ERROR(ReadInt(fields, arch + ".context_length", kPositions, &config->max_position));
  RETURN_IF_ERROR(
      ReadFloat(fields, arch + ".attention.layer_norm_rms_epsilon", kEps, &config->rms_norm_eps));
  RETURN_IF_ERROR(ReadGgufHeads(fields, arch, config));
  RETURN_IF_ERROR(ReadGgufVocabSize(fields, arch, config));
  int experts = 0;
  RETURN_IF_ERROR(ReadOptionalInt(fields, arch + ".expert_count", {0, 1 << 20}, &experts));
  if (experts > 0) {
    return UnimplementedError("{}.expert_count is {}: mixtures of experts are not implemented",
                              arch, experts);
  }
  config->tie_word_embeddings = fields.TensorShape("output.weight").empty();
  config->sliding_window.assign(static_cast<size_t>(config->num_layers), 0);
  return ReadGgufRope(fields, arch, config);
}

bool GgufHasBias(const ConfigFields& fields, std::string_view name) {
  return !fields.TensorShape(fmt::format("blk.0.{}.bias", name)).empty();
}

}  // namespace tokenbutler
