#include "engine/weights/gguf_tokenizer.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tokenbutler {
namespace {

constexpr int64_t kNoId = 0xffffffff;  // what converters write for "no such token"

std::string Key(std::string_view name) { return fmt::format("tokenizer.ggml.{}", name); }

absl::StatusOr<TokenizerSpec::Kind> ReadKind(const std::string& model) {
  if (model == "gpt2") return TokenizerSpec::Kind::kByteLevelBpe;
  if (model == "llama") return TokenizerSpec::Kind::kSentencePieceBpe;
  return UnimplementedError(
      "tokenizer.ggml.model is '{}', which is not implemented (gpt2 and llama are)",
      model.substr(0, 64));
}

absl::Status CheckLength(std::string_view name, size_t length, size_t wanted) {
  if (length == wanted) return absl::OkStatus();
  return InvalidArgumentError("{} has {} entries, must have one per token: {}", Key(name), length,
                              wanted);
}

absl::Status ReadTokens(const GgufModel& model, int vocab_size, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(std::optional<std::vector<std::string>> tokens,
                   model.FindStrings(Key("tokens")));
  if (!tokens.has_value()) return NotFoundError("{} is missing", Key("tokens"));
  if (tokens->empty() || tokens->size() > static_cast<size_t>(vocab_size)) {
    return InvalidArgumentError("{} has {} entries, must have from 1 to {} (rows of token_embd)",
                                Key("tokens"), tokens->size(), vocab_size);
  }
  spec->tokens = *std::move(tokens);
  ASSIGN_OR_RETURN(std::optional<std::vector<std::string>> merges,
                   model.FindStrings(Key("merges")));
  if (merges.has_value()) spec->merges = *std::move(merges);
  return absl::OkStatus();
}

absl::Status ReadTypesAndScores(const GgufModel& model, TokenizerSpec* spec) {
  const size_t n = spec->tokens.size();
  ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> types,
                   model.metadata().Find<std::vector<int64_t>>(Key("token_type")));
  if (types.has_value()) {
    RETURN_IF_ERROR(CheckLength("token_type", types->size(), n));
    for (size_t id = 0; id < n; ++id) {
      const int64_t type = (*types)[id];
      if (type < 1 || type > 6) {
        return InvalidArgumentError("{}[{}] is {}, must be from 1 to 6", Key("token_type"), id,
                                    type);
      }
      spec->token_types.push_back(static_cast<TokenizerSpec::TokenType>(type));
    }
  }
  ASSIGN_OR_RETURN(std::optional<std::vector<float>> scores,
                   model.metadata().Find<std::vector<float>>(Key("scores")));
  // Converters write scores for byte-level BPE too, where they mean nothing.
  if (!scores.has_value() || spec->kind == TokenizerSpec::Kind::kByteLevelBpe) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CheckLength("scores", scores->size(), n));
  spec->scores = *std::move(scores);
  return absl::OkStatus();
}

absl::Status ReadIds(const GgufModel& model, TokenizerSpec* spec) {
  const std::pair<const char*, std::optional<int32_t>*> ids[] = {
      {"bos_token_id", &spec->bos_id},     {"eos_token_id", &spec->eos_id},
      {"unknown_token_id", &spec->unk_id}, {"padding_token_id", &spec->pad_id},
      {"eot_token_id", &spec->eot_id},
  };
  const auto n = static_cast<int64_t>(spec->tokens.size());
  for (const auto& [name, out] : ids) {
    ASSIGN_OR_RETURN(const std::optional<int64_t> id, model.FindInt(Key(name)));
    if (!id.has_value() || *id == kNoId || *id == -1) continue;
    if (*id < 0 || *id >= n) {
      return InvalidArgumentError("{} is {}, must be from 0 to {}", Key(name), *id, n - 1);
    }
    *out = static_cast<int32_t>(*id);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<TokenizerSpec>> ReadGgufTokenizer(const GgufModel& model,
                                                               int vocab_size) {
  ASSIGN_OR_RETURN(const std::optional<std::string> kind, model.FindString(Key("model")));
  if (!kind.has_value()) return std::optional<TokenizerSpec>();
  TokenizerSpec spec;
  ASSIGN_OR_RETURN(spec.kind, ReadKind(*kind));
  RETURN_IF_ERROR(ReadTokens(model, vocab_size, &spec));
  RETURN_IF_ERROR(ReadTypesAndScores(model, &spec));
  RETURN_IF_ERROR(ReadIds(model, &spec));
  ASSIGN_OR_RETURN(const std::optional<std::string> pre, model.FindString(Key("pre")));
  if (spec.kind == TokenizerSpec::Kind::kByteLevelBpe) spec.pre_tokenizer = pre.value_or("default");
  ASSIGN_OR_RETURN(spec.add_bos, model.FindBool(Key("add_bos_token")));
  ASSIGN_OR_RETURN(spec.add_eos, model.FindBool(Key("add_eos_token")));
  ASSIGN_OR_RETURN(const std::optional<bool> add_space, model.FindBool(Key("add_space_prefix")));
  spec.add_space_prefix = add_space.value_or(true);
  return std::optional<TokenizerSpec>(std::move(spec));
}

}  // namespace tokenbutler
