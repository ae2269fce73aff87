#include "engine/tokenizer/tokenizer_json.h"

#include <utility>
#include <vector>

#include "engine/tokenizer/json_field.h"
#include "engine/tokenizer/tokenizer_json_parts.h"

namespace tokenbutler {
namespace {

using TokenType = TokenizerSpec::TokenType;

// How many ids may be unused. Bounds what a lying id can make us allocate.
constexpr size_t kMaxUnusedIds = 65536;

absl::Status CheckAbsentOrEmpty(const JsonField& model, std::string_view key) {
  const std::optional<JsonField> field = model.Find(key);
  if (!field.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string_view text, field->AsString());
  if (text.empty()) return absl::OkStatus();
  return UnimplementedError("{} is '{}', only null is supported", field->path(), text);
}

// Puts `token` at `id`. Ids that nothing takes stay empty and unused.
absl::Status PlaceToken(std::string_view token, int32_t id, TokenType type, const JsonField& field,
                        TokenizerSpec* spec) {
  if (static_cast<size_t>(id) >= spec->tokens.size()) {
    spec->tokens.resize(id + 1);
    spec->token_types.resize(id + 1, TokenType::kUnused);
  }
  if (spec->token_types[id] != TokenType::kUnused && spec->tokens[id] != token) {
    return InvalidArgumentError("{} gives id {} to '{}', but '{}' has it already", field.path(), id,
                                token, spec->tokens[id]);
  }
  spec->tokens[id] = token;
  spec->token_types[id] = type;
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const JsonField& model, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const JsonField vocab, model.Get("vocab"));
  RETURN_IF_ERROR(vocab.CheckObject());
  const auto bound = static_cast<int32_t>(vocab.size() + kMaxUnusedIds);
  for (const auto& [token, value] : vocab.value().items()) {
    const JsonField entry(&value, vocab.path() + "['" + token + "']");
    ASSIGN_OR_RETURN(const int32_t id, entry.AsId(bound));
    RETURN_IF_ERROR(PlaceToken(token, id, TokenType::kNormal, entry, spec));
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const JsonField& model, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const JsonField merges, model.Get("merges"));
  RETURN_IF_ERROR(merges.CheckArray());
  spec->merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const JsonField merge = merges.At(i);
    if (merge.is_string()) {
      ASSIGN_OR_RETURN(const std::string_view text, merge.AsString());
      spec->merges.emplace_back(text);
      continue;
    }
    RETURN_IF_ERROR(merge.CheckArray());
    if (merge.size() != 2) {
      return InvalidArgumentError("{} has {} elements, must have 2", merge.path(), merge.size());
    }
    ASSIGN_OR_RETURN(const std::string_view left, merge.At(0).AsString());
    ASSIGN_OR_RETURN(const std::string_view right, merge.At(1).AsString());
    spec->merges.push_back(fmt::format("{} {}", left, right));
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const JsonField& document, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const JsonField model, document.Get("model"));
  RETURN_IF_ERROR(model.CheckObject());
  if (model.Find("type").has_value()) {  // files of the first days have none
    ASSIGN_OR_RETURN(const std::string_view type, model.GetString("type"));
    if (type != "BPE") return UnimplementedError("model.type is '{}', only BPE is supported", type);
  }
  if (const std::optional<JsonField> dropout = model.Find("dropout")) {
    if (!dropout->value().is_number() || dropout->value().get<double>() != 0) {
      return UnimplementedError("model.dropout is {}, only null is supported",
                                dropout->value().dump());
    }
  }
  RETURN_IF_ERROR(CheckAbsentOrEmpty(model, "continuing_subword_prefix"));
  RETURN_IF_ERROR(CheckAbsentOrEmpty(model, "end_of_word_suffix"));
  ASSIGN_OR_RETURN(spec->fuse_unk, model.GetBool("fuse_unk", false));
  ASSIGN_OR_RETURN(spec->byte_fallback, model.GetBool("byte_fallback", false));
  ASSIGN_OR_RETURN(spec->ignore_merges, model.GetBool("ignore_merges", false));
  RETURN_IF_ERROR(ReadVocabulary(model, spec));
  RETURN_IF_ERROR(ReadMerges(model, spec));
  if (const std::optional<JsonField> unk = model.Find("unk_token")) {
    ASSIGN_OR_RETURN(const std::string_view token, unk->AsString());
    for (size_t i = 0; i < spec->tokens.size() && !spec->unk_id.has_value(); ++i) {
      if (spec->tokens[i] == token) spec->unk_id = static_cast<int32_t>(i);
    }
    if (!spec->unk_id.has_value()) {
      return InvalidArgumentError("model.unk_token is '{}', which is not in model.vocab", token);
    }
    spec->byte_level_unk = true;
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const JsonField& document, TokenizerSpec* spec) {
  spec->added_tokens.emplace();
  const std::optional<JsonField> list = document.Find("added_tokens");
  if (!list.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(list->CheckArray());
  // An added token may lie a little above the vocabulary, not anywhere.
  const int32_t bound = static_cast<int32_t>(spec->tokens.size() + list->size() + kMaxUnusedIds);
  for (size_t i = 0; i < list->size(); ++i) {
    const JsonField entry = list->At(i);
    ASSIGN_OR_RETURN(const JsonField id_field, entry.Get("id"));
    AddedToken token;
    ASSIGN_OR_RETURN(token.id, id_field.AsId(bound));
    ASSIGN_OR_RETURN(token.content, entry.GetString("content"));
    ASSIGN_OR_RETURN(token.special, entry.GetBool("special", false));
    ASSIGN_OR_RETURN(token.normalized, entry.GetBool("normalized", !token.special));
    ASSIGN_OR_RETURN(token.lstrip, entry.GetBool("lstrip", false));
    ASSIGN_OR_RETURN(token.rstrip, entry.GetBool("rstrip", false));
    ASSIGN_OR_RETURN(token.single_word, entry.GetBool("single_word", false));
    const bool in_vocabulary = static_cast<size_t>(token.id) < spec->tokens.size() &&
                               spec->token_types[token.id] == TokenType::kNormal;
    const TokenType type = in_vocabulary   ? TokenType::kNormal
                           : token.special ? TokenType::kControl
                                           : TokenType::kUserDefined;
    RETURN_IF_ERROR(PlaceToken(token.content, token.id, type, entry, spec));
    spec->added_tokens->push_back(std::move(token));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json) {
  ASSIGN_OR_RETURN(const nlohmann::json root, ParseJson(json, "tokenizer.json"));
  const JsonField document(&root, "");
  RETURN_IF_ERROR(document.CheckObject());
  TokenizerSpec spec;
  RETURN_IF_ERROR(ReadModel(document, &spec));
  RETURN_IF_ERROR(ReadAddedTokens(document, &spec));
  RETURN_IF_ERROR(ReadTextSteps(document, &spec));
  RETURN_IF_ERROR(ReadDecoder(document, &spec));
  RETURN_IF_ERROR(ReadPostProcessor(document, &spec));
  return spec;
}

}  // namespace tokenbutler
