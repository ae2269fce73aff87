#include "engine/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <array>

#include "engine/tokenizer/pre_tokenizer.h"
#include "engine/tokenizer/unicode.h"

namespace tokenbutler {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";  // SentencePiece's "▁"
constexpr std::string_view kReplacement = "\uFFFD";

using Kind = TokenizerSpec::Kind;
using SpacePrefix = TokenizerSpec::SpacePrefix;

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  result.reserve(text.size());
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != std::string_view::npos;
       begin = at + from.size()) {
    result.append(text.substr(begin, at - begin)).append(to);
  }
  result.append(text.substr(begin));
  return result;
}

std::vector<AddedToken> WithNormalized(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> result;
  for (const AddedToken& token : tokens) {
    if (token.normalized == normalized) result.push_back(token);
  }
  return result;
}

// Moves the ends of `spans` from `text` to ReplaceIllFormedUtf8(text). A span that ends inside a
// sequence covers all of it.
std::vector<std::pair<size_t, size_t>> MoveSpans(
    std::string_view text, absl::Span<const std::pair<size_t, size_t>> spans) {
  std::vector<std::pair<size_t, size_t>> moved(spans.begin(), spans.end());
  size_t span = 0;
  bool begin_done = false;
  size_t position = 0;
  for (size_t i = 0; i < text.size() && span < spans.size();) {
    const Utf8Char c = ReadUtf8(text, i);
    const size_t next = i + c.length;
    const size_t next_position = position + (c.well_formed ? c.length : kReplacement.size());
    while (span < spans.size()) {
      if (!begin_done && spans[span].first < next) {
        moved[span].first = position;
        begin_done = true;
      }
      if (!begin_done || spans[span].second > next) break;
      moved[span].second = spans[span].second <= i ? position : next_position;
      ++span;
      begin_done = false;
    }
    i = next;
    position = next_position;
  }
  for (; span < spans.size(); ++span) {
    if (!begin_done) moved[span].first = position;
    moved[span].second = position;
    begin_done = false;
  }
  return moved;
}

// Texts of control tokens that end a turn in the model families that are served. Files often name
// only one of them as EOS.
constexpr std::array<std::string_view, 8> kEndOfTurnTokens = {
    "<|eot_id|>",    "<|eom_id|>", "<|end_of_text|>", "<|im_end|>",
    "<|endoftext|>", "</s>",       "<|end|>",         "<｜end▁of▁sentence｜>",
};

}  // namespace

struct BpeTokenizer::Workspace {
  Workspace(const MergeTable* merges, EncodeOptions options_in)
      : merger(merges), options(options_in) {}

  BpeMerger merger;
  EncodeOptions options;
  Spans literal_spans;  // of the text that is encoded
  CodePoints code_points;
  std::vector<int64_t> piece_ends;
  std::vector<int32_t> symbols;
  std::vector<int32_t> ids;  // the result
};

BpeTokenizer::BpeTokenizer(TokenizerSpec spec)
    : spec_(std::move(spec)),
      special_(spec_.tokens.size()),
      byte_fallback_(spec_.tokens.size()),
      original_matcher_(WithNormalized(*spec_.added_tokens, false)),
      normalized_matcher_([this] {
        std::vector<AddedToken> tokens = WithNormalized(*spec_.added_tokens, true);
        for (AddedToken& token : tokens) token.content = Normalize(token.content, true);
        return AddedTokenMatcher(tokens);
      }()) {
  token_bytes_.reserve(spec_.tokens.size());
  for (size_t id = 0; id < spec_.tokens.size(); ++id) {
    const std::string& token = spec_.tokens[id];
    if (spec_.kind == Kind::kByteLevelBpe) {
      token_bytes_.push_back(BytesOfByteLevelToken(token));
    } else if (const int byte = ByteOfFallbackToken(token); byte >= 0) {
      token_bytes_.emplace_back(1, static_cast<char>(byte));
      byte_fallback_[id] = true;
    } else {
      token_bytes_.push_back(ReplaceAll(token, kSpaceMark, " "));
    }
  }
  for (const AddedToken& token : *spec_.added_tokens) {
    special_[token.id] = token.special;
    has_special_normalized_ |= token.special && token.normalized;
  }
  strips_leading_space_ = spec_.kind == Kind::kSentencePieceBpe &&
                          spec_.strips_leading_space.value_or(spec_.add_space_prefix);
  CollectEosIds();
}

absl::StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Build(TokenizerSpec spec) {
  // The encodings below view the tokens, so the spec has its final place before they are made.
  std::unique_ptr<BpeTokenizer> tokenizer(new BpeTokenizer(std::move(spec)));
  if (tokenizer->spec_.kind == Kind::kByteLevelBpe) {
    ASSIGN_OR_RETURN(tokenizer->byte_level_,
                     ByteLevelBpe::Create(tokenizer->spec_, tokenizer->token_bytes_));
  } else {
    ASSIGN_OR_RETURN(tokenizer->sentence_piece_, SentencePieceBpe::Create(tokenizer->spec_));
  }
  return tokenizer;
}

void BpeTokenizer::CollectEosIds() {
  const auto add = [&](int32_t id) {
    if (std::find(eos_ids_.begin(), eos_ids_.end(), id) == eos_ids_.end()) eos_ids_.push_back(id);
  };
  if (spec_.eos_id.has_value()) add(*spec_.eos_id);
  if (spec_.eot_id.has_value()) add(*spec_.eot_id);
  for (const int32_t id : spec_.extra_eos_ids) add(id);
  for (const AddedToken& token : *spec_.added_tokens) {
    const bool ends_turn = std::find(kEndOfTurnTokens.begin(), kEndOfTurnTokens.end(),
                                     token.content) != kEndOfTurnTokens.end();
    if (token.special && ends_turn) add(token.id);
  }
}

std::vector<int32_t> BpeTokenizer::Encode(std::string_view text, EncodeOptions options) const {
  Workspace workspace(byte_level_.has_value() ? &byte_level_->merges() : &sentence_piece_->merges(),
                      options);
  std::string replaced;
  if (options.parse_special) {
    workspace.literal_spans.assign(options.literal_spans.begin(), options.literal_spans.end());
  }
  if (!IsWellFormedUtf8(text)) {
    workspace.literal_spans = MoveSpans(text, workspace.literal_spans);
    replaced = ReplaceIllFormedUtf8(text);
    text = replaced;
  }
  if (options.add_special_tokens) workspace.ids = *spec_.prefix_ids;
  const AddedTokenMatcher::Options match{.parse_special = options.parse_special,
                                         .literal_spans = workspace.literal_spans};
  for (const TextSection& section : original_matcher_.Split(text, match)) {
    if (section.id >= 0) {
      workspace.ids.push_back(section.id);
    } else {
      EncodeSection(text.substr(section.begin, section.end - section.begin), section.begin,
                    &workspace);
    }
  }
  if (options.add_special_tokens) {
    workspace.ids.insert(workspace.ids.end(), spec_.suffix_ids->begin(), spec_.suffix_ids->end());
  }
  return std::move(workspace.ids);
}

// `offset`: where the section begins in the whole text.
void BpeTokenizer::EncodeSection(std::string_view section, size_t offset,
                                 Workspace* workspace) const {
  const std::string normalized = Normalize(section, true);
  if (normalized_matcher_.empty()) {
    EncodePiece(normalized, offset == 0, workspace);
    return;
  }
  Spans spans;
  if (has_special_normalized_) spans = NormalizedSpans(section, offset, workspace->literal_spans);
  const AddedTokenMatcher::Options match{.parse_special = workspace->options.parse_special,
                                         .literal_spans = spans};
  for (const TextSection& part : normalized_matcher_.Split(normalized, match)) {
    if (part.id >= 0) {
      workspace->ids.push_back(part.id);
    } else {
      EncodePiece(std::string_view(normalized).substr(part.begin, part.end - part.begin),
                  offset == 0 && part.begin == 0, workspace);
    }
  }
}

// What the model's normaliser makes of a section. Metaspace is no normaliser but a pre-tokenizer:
// EncodePiece does it.
std::string BpeTokenizer::Normalize(std::string_view section, bool at_section_start) const {
  std::string result = spec_.nfc ? ToNfc(section) : std::string(section);
  if (spec_.kind != Kind::kSentencePieceBpe || spec_.space_prefix != SpacePrefix::kEverySection) {
    return result;
  }
  result = ReplaceAll(result, " ", kSpaceMark);
  if (spec_.add_space_prefix && at_section_start && !section.empty()) result.insert(0, kSpaceMark);
  return result;
}

// The literal spans inside a section, in its normalised text.
BpeTokenizer::Spans BpeTokenizer::NormalizedSpans(std::string_view section, size_t offset,
                                                  const Spans& spans) const {
  Spans result;
  size_t done = 0;        // of the section
  size_t normalized = 0;  // length of what was made of it
  const auto advance_to = [&](size_t end) {
    normalized += Normalize(section.substr(done, end - done), done == 0).size();
    done = end;
    return normalized;
  };
  for (const auto& [begin, end] : spans) {
    if (end <= offset || begin >= offset + section.size()) continue;
    const size_t span_begin = advance_to(std::max(begin, offset) - offset);
    result.emplace_back(span_begin, advance_to(std::min(end - offset, section.size())));
  }
  return result;
}

void BpeTokenizer::EncodePiece(std::string_view piece, bool at_start, Workspace* workspace) const {
  if (sentence_piece_.has_value()) {
    if (spec_.space_prefix == SpacePrefix::kEverySection) {
      sentence_piece_->Encode(piece, &workspace->merger, &workspace->symbols, &workspace->ids);
      return;
    }
    std::string marked = ReplaceAll(piece, " ", kSpaceMark);
    const bool here = spec_.space_prefix == SpacePrefix::kMetaspaceAlways || at_start;
    if (spec_.add_space_prefix && here && !marked.starts_with(kSpaceMark)) {
      marked.insert(0, kSpaceMark);
    }
    sentence_piece_->Encode(marked, &workspace->merger, &workspace->symbols, &workspace->ids);
    return;
  }
  const CodePoints& code_points = workspace->code_points;
  workspace->code_points.Assign(piece);
  PreTokenize(code_points, spec_.pre_tokenizer_steps, &workspace->piece_ends);
  int64_t begin = 0;
  for (const int64_t end : workspace->piece_ends) {
    const uint32_t begin_byte = code_points.ByteOffset(begin);
    byte_level_->EncodeWord(piece.substr(begin_byte, code_points.ByteOffset(end) - begin_byte),
                            &workspace->merger, &workspace->symbols, &workspace->ids);
    begin = end;
  }
}

std::string BpeTokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  if (spec_.kind == Kind::kByteLevelBpe) {
    for (const int32_t id : ids) {
      if (!(skip_special_tokens && IsSpecial(id))) text += TokenBytes(id);
    }
    return ReplaceIllFormedUtf8(text);
  }
  // A run of byte tokens is text when it is well-formed as a whole; otherwise each of its bytes is
  // one U+FFFD.
  std::string byte_run;
  const auto end_byte_run = [&] {
    if (IsWellFormedUtf8(byte_run)) {
      text += byte_run;
    } else {
      for (size_t i = 0; i < byte_run.size(); ++i) text += kReplacement;
    }
    byte_run.clear();
  };
  for (const int32_t id : ids) {
    if (!IsKnown(id) || (skip_special_tokens && special_[id])) continue;
    if (byte_fallback_[id]) {
      byte_run += token_bytes_[id];
    } else {
      end_byte_run();
      text += token_bytes_[id];
    }
  }
  end_byte_run();
  if (strips_leading_space_ && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

}  // namespace tokenbutler
