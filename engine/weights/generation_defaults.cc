#include "engine/weights/generation_defaults.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer_spec.h"

namespace tokenbutler {
namespace {

// Control tokens that end a turn or a text in the model families we know.
constexpr std::array<std::string_view, 9> kEndTokens = {
    "<|im_end|>",      "<|eot_id|>",    "<|eom_id|>", "<|end|>", "<|endoftext|>",
    "<|end_of_text|>", "<end_of_turn>", "<|EOT|>",    "</s>"};

absl::Status CheckId(std::string_view field, int64_t id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return InvalidArgumentError("{} is {}, must be from 0 to {}", field, id, vocab_size - 1);
}

void AddOnce(std::vector<int32_t>* ids, int64_t id) {
  const auto narrow = static_cast<int32_t>(id);
  if (std::find(ids->begin(), ids->end(), narrow) == ids->end()) ids->push_back(narrow);
}

absl::Status ReadId(const ConfigFields& fields, std::string_view field, int vocab_size,
                    std::optional<int32_t>* out) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> id, fields.FindInt(field));
  if (!id.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckId(field, *id, vocab_size));
  *out = static_cast<int32_t>(*id);
  return absl::OkStatus();
}

absl::Status ReadNumber(const ConfigFields& fields, const std::string& field, Bounds<float> bounds,
                        std::optional<float>* out) {
  ASSIGN_OR_RETURN(const std::optional<double> found, fields.FindFloat(field));
  if (!found.has_value()) return absl::OkStatus();
  float number = 0;
  RETURN_IF_ERROR(ReadFloat(fields, field, bounds, &number));
  *out = number;
  return absl::OkStatus();
}

absl::Status ReadTopK(const ConfigFields& fields, const std::string& field,
                      std::optional<int>* out) {
  int top_k = -1;
  // vLLM and others write -1 for "off" where transformers writes 0.
  RETURN_IF_ERROR(ReadOptionalInt(fields, field, {-1, 1 << 24}, &top_k));
  ASSIGN_OR_RETURN(const std::optional<int64_t> found, fields.FindInt(field));
  if (found.has_value()) *out = std::max(top_k, 0);
  return absl::OkStatus();
}

absl::Status AddGgufEndTokens(const GgufModel& model, int vocab_size, std::vector<int32_t>* ids) {
  using Strings = std::vector<std::string_view>;
  ASSIGN_OR_RETURN(const std::optional<Strings> tokens,
                   model.metadata().Find<Strings>("tokenizer.ggml.tokens"));
  ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> types,
                   model.metadata().Find<std::vector<int64_t>>("tokenizer.ggml.token_type"));
  if (!tokens.has_value() || !types.has_value()) return absl::OkStatus();
  const size_t n = std::min({tokens->size(), types->size(), static_cast<size_t>(vocab_size)});
  for (size_t id = 0; id < n; ++id) {
    if ((*types)[id] != static_cast<int64_t>(TokenizerSpec::TokenType::kControl)) continue;
    const auto end = std::find(kEndTokens.begin(), kEndTokens.end(), (*tokens)[id]);
    if (end != kEndTokens.end()) AddOnce(ids, static_cast<int64_t>(id));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationDefaults> ReadHfGeneration(const JsonFields& fields, int vocab_size) {
  GenerationDefaults defaults;
  ASSIGN_OR_RETURN(const std::vector<int64_t> eos_ids, fields.FindInts("eos_token_id"));
  for (const int64_t id : eos_ids) {
    RETURN_IF_ERROR(CheckId("eos_token_id", id, vocab_size));
    AddOnce(&defaults.eos_ids, id);
  }
  RETURN_IF_ERROR(ReadId(fields, "bos_token_id", vocab_size, &defaults.bos_id));
  RETURN_IF_ERROR(ReadNumber(fields, "temperature", {0.0f, 100.0f}, &defaults.temperature));
  RETURN_IF_ERROR(ReadNumber(fields, "top_p", {1e-6f, 1.0f}, &defaults.top_p));
  RETURN_IF_ERROR(ReadNumber(fields, "min_p", {0.0f, 1.0f}, &defaults.min_p));
  RETURN_IF_ERROR(
      ReadNumber(fields, "repetition_penalty", {1e-3f, 100.0f}, &defaults.repetition_penalty));
  RETURN_IF_ERROR(ReadTopK(fields, "top_k", &defaults.top_k));
  return defaults;
}

absl::StatusOr<GenerationDefaults> ReadGgufGeneration(const GgufModel& model, int vocab_size) {
  GenerationDefaults defaults;
  for (const char* name : {"eos", "eot", "eom"}) {
    std::optional<int32_t> id;
    RETURN_IF_ERROR(
        ReadId(model, fmt::format("tokenizer.ggml.{}_token_id", name), vocab_size, &id));
    if (id.has_value()) AddOnce(&defaults.eos_ids, *id);
  }
  RETURN_IF_ERROR(ReadId(model, "tokenizer.ggml.bos_token_id", vocab_size, &defaults.bos_id));
  RETURN_IF_ERROR(AddGgufEndTokens(model, vocab_size, &defaults.eos_ids));
  const std::string sampling = "general.sampling.";
  RETURN_IF_ERROR(ReadNumber(model, sampling + "temp", {0.0f, 100.0f}, &defaults.temperature));
  RETURN_IF_ERROR(ReadNumber(model, sampling + "top_p", {1e-6f, 1.0f}, &defaults.top_p));
  RETURN_IF_ERROR(ReadNumber(model, sampling + "min_p", {0.0f, 1.0f}, &defaults.min_p));
  RETURN_IF_ERROR(ReadNumber(model, sampling + "penalty_repeat", {1e-3f, 100.0f},
                             &defaults.repetition_penalty));
  RETURN_IF_ERROR(ReadTopK(model, sampling + "top_k", &defaults.top_k));
  return defaults;
}

}  // namespace tokenbutler
