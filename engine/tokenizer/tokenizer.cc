#include "engine/tokenizer/tokenizer.h"

#include <cmath>
#include <utility>

#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/pre_tokenizer.h"
#include "engine/tokenizer/unicode.h"

namespace tokenbutler {
namespace {

using Kind = TokenizerSpec::Kind;
using TokenType = TokenizerSpec::TokenType;

constexpr size_t kMaxTokens = size_t{1} << 24;

absl::Status CheckId(std::string_view field, std::optional<int32_t> id, size_t num_tokens) {
  if (!id.has_value() || (*id >= 0 && static_cast<size_t>(*id) < num_tokens)) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("{} is {}, must be in [0, {})", field, *id, num_tokens);
}

absl::Status CheckIds(std::string_view field, absl::Span<const int32_t> ids, size_t num_tokens) {
  for (const int32_t id : ids) RETURN_IF_ERROR(CheckId(field, id, num_tokens));
  return absl::OkStatus();
}

absl::Status CheckVocabulary(const TokenizerSpec& spec) {
  const size_t n = spec.tokens.size();
  if (n == 0 || n > kMaxTokens) {
    return InvalidArgumentError("tokens has {} entries, must have 1 to {}", n, kMaxTokens);
  }
  for (size_t i = 0; i < n; ++i) {
    if (!IsWellFormedUtf8(spec.tokens[i])) {
      return InvalidArgumentError("tokens[{}] is '{}', must be UTF-8", i,
                                  ReplaceIllFormedUtf8(spec.tokens[i]));
    }
  }
  if (!spec.token_types.empty() && spec.token_types.size() != n) {
    return InvalidArgumentError("token_types has {} entries, must have one for each of {} tokens",
                                spec.token_types.size(), n);
  }
  if (spec.kind == Kind::kSentencePieceBpe && spec.merges.empty()) {
    if (spec.scores.size() != n) {
      return InvalidArgumentError("scores has {} entries, must have one for each of {} tokens",
                                  spec.scores.size(), n);
    }
    for (size_t i = 0; i < n; ++i) {
      if (std::isnan(spec.scores[i])) {
        return InvalidArgumentError("scores[{}] is NaN, must be a number", i);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAllIds(const TokenizerSpec& spec) {
  const size_t n = spec.tokens.size();
  RETURN_IF_ERROR(CheckId("bos_id", spec.bos_id, n));
  RETURN_IF_ERROR(CheckId("eos_id", spec.eos_id, n));
  RETURN_IF_ERROR(CheckId("unk_id", spec.unk_id, n));
  RETURN_IF_ERROR(CheckId("pad_id", spec.pad_id, n));
  RETURN_IF_ERROR(CheckId("eot_id", spec.eot_id, n));
  RETURN_IF_ERROR(CheckIds("extra_eos_ids", spec.extra_eos_ids, n));
  if (spec.prefix_ids.has_value()) RETURN_IF_ERROR(CheckIds("prefix_ids", *spec.prefix_ids, n));
  if (spec.suffix_ids.has_value()) RETURN_IF_ERROR(CheckIds("suffix_ids", *spec.suffix_ids, n));
  if (!spec.added_tokens.has_value()) return absl::OkStatus();
  for (const AddedToken& token : *spec.added_tokens) {
    RETURN_IF_ERROR(CheckId("added_tokens.id", token.id, n));
    if (!IsWellFormedUtf8(token.content)) {
      return InvalidArgumentError("added_tokens.content of id {} is '{}', must be UTF-8", token.id,
                                  ReplaceIllFormedUtf8(token.content));
    }
  }
  return absl::OkStatus();
}

absl::Status ApplyPreTokenizer(TokenizerSpec* spec) {
  if (spec->kind == Kind::kSentencePieceBpe) {
    if (!spec->pre_tokenizer_steps.empty()) {
      return InvalidArgumentError("pre_tokenizer_steps is set, must be empty for SentencePiece");
    }
    return absl::OkStatus();  // "default" is what files say here
  }
  if (spec->pre_tokenizer.empty()) return absl::OkStatus();
  if (!spec->pre_tokenizer_steps.empty()) {
    return InvalidArgumentError(
        "pre_tokenizer is '{}' and pre_tokenizer_steps is set too, must be "
        "one of them",
        spec->pre_tokenizer);
  }
  ASSIGN_OR_RETURN(PreTokenizerRecipe recipe, FindPreTokenizer(spec->pre_tokenizer));
  spec->pre_tokenizer_steps = std::move(recipe.steps);
  spec->nfc = recipe.nfc;
  spec->ignore_merges = recipe.ignore_merges;
  if (recipe.adds_bos && !spec->add_bos.has_value()) spec->add_bos = spec->bos_id.has_value();
  return absl::OkStatus();
}

std::vector<AddedToken> AddedTokensOfTypes(const TokenizerSpec& spec) {
  std::vector<AddedToken> added;
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    const int32_t id = static_cast<int32_t>(i);
    bool special = false;
    if (spec.token_types.empty()) {
      // Nothing but the roles says what a token is.
      special = spec.bos_id == id || spec.eos_id == id || spec.pad_id == id || spec.eot_id == id;
      if (!special) continue;
    } else {
      const TokenType type = spec.token_types[i];
      special = type == TokenType::kControl || type == TokenType::kUnknown;
      if (!special && type != TokenType::kUserDefined) continue;
    }
    added.push_back({.id = id, .content = spec.tokens[i], .special = special});
  }
  return added;
}

}  // namespace

absl::Status CompleteTokenizerSpec(TokenizerSpec* spec) {
  RETURN_IF_ERROR(CheckVocabulary(*spec));
  RETURN_IF_ERROR(ApplyPreTokenizer(spec));
  RETURN_IF_ERROR(CheckAllIds(*spec));
  if (spec->kind == Kind::kSentencePieceBpe) {
    for (size_t i = 0; i < spec->token_types.size() && !spec->unk_id.has_value(); ++i) {
      if (spec->token_types[i] == TokenType::kUnknown) spec->unk_id = static_cast<int32_t>(i);
    }
    if (!spec->add_bos.has_value()) spec->add_bos = spec->bos_id.has_value();
  }
  if (!spec->added_tokens.has_value()) spec->added_tokens = AddedTokensOfTypes(*spec);
  if (!spec->prefix_ids.has_value()) {
    spec->prefix_ids.emplace();
    if (spec->add_bos.value_or(false)) {
      if (!spec->bos_id.has_value()) return InvalidArgumentError("add_bos is set without a bos_id");
      spec->prefix_ids->push_back(*spec->bos_id);
    }
  }
  if (!spec->suffix_ids.has_value()) {
    spec->suffix_ids.emplace();
    if (spec->add_eos.value_or(false)) {
      if (!spec->eos_id.has_value())
        return InvalidArgumentError("add_eos is set without an eos_id");
      spec->suffix_ids->push_back(*spec->eos_id);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerSpec spec) {
  RETURN_IF_ERROR(CompleteTokenizerSpec(&spec));
  ASSIGN_OR_RETURN(std::unique_ptr<BpeTokenizer> tokenizer, BpeTokenizer::Build(std::move(spec)));
  return tokenizer;
}

}  // namespace tokenbutler
