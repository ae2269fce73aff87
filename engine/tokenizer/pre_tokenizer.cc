#include "engine/tokenizer/pre_tokenizer.h"

#include <array>

#include "engine/tokenizer/unicode.h"

namespace tokenbutler {
namespace {

// One piece that a step looks at: nothing outside [begin, end) exists for it.
struct Range {
  const CodePoints& text;
  int64_t begin;
  int64_t end;

  bool Is(int64_t i, uint8_t classes) const { return i < end && text.Is(i, classes); }
  bool IsChar(int64_t i, char32_t c) const { return i < end && text[i] == c; }
  bool IsNewline(int64_t i) const { return IsChar(i, U'\r') || IsChar(i, U'\n'); }
  // [^\s\p{L}\p{N}]
  bool IsSymbol(int64_t i) const {
    return i < end && !text.Is(i, kSpaceClass | kLetterClass | kNumberClass);
  }
  // [^\r\n\p{L}\p{N}]
  bool IsWordPrefix(int64_t i) const {
    return i < end && !text.Is(i, kLetterClass | kNumberClass) && !IsNewline(i);
  }
  int64_t SkipClass(int64_t i, uint8_t classes) const {
    while (Is(i, classes)) ++i;
    return i;
  }
};

// Each matcher returns the end of the match that begins at `i`, or `i` when there is none.

// 's|'t|'re|'ve|'m|'ll|'d; folded: upper case too, and U+017F, which folds to "s".
int64_t MatchContraction(const Range& r, int64_t i, bool folded) {
  if (!r.IsChar(i, U'\'') || i + 1 >= r.end) return i;
  const auto letter = [&](int64_t at) -> char32_t {
    if (at >= r.end) return 0;
    const char32_t c = r.text[at];
    if (folded && c >= U'A' && c <= U'Z') return c + (U'a' - U'A');
    if (folded && c == 0x17F) return U's';
    return c;
  };
  const char32_t first = letter(i + 1);
  if (first == U's' || first == U't' || first == U'm' || first == U'd') return i + 2;
  const char32_t second = letter(i + 2);
  const bool two = (first == U'r' && second == U'e') || (first == U'v' && second == U'e') ||
                   (first == U'l' && second == U'l');
  return two ? i + 3 : i;
}

// ` ?C+` for a class C of code points.
int64_t MatchSpacedRun(const Range& r, int64_t i, uint8_t classes) {
  const int64_t start = r.IsChar(i, U' ') ? i + 1 : i;
  const int64_t end = r.SkipClass(start, classes);
  return end > start ? end : i;
}

// ` ?[^\s\p{L}\p{N}]+` and then any number of newlines, and of slashes with `slashes`.
int64_t MatchSymbols(const Range& r, int64_t i, bool newlines, bool slashes) {
  const int64_t start = r.IsChar(i, U' ') ? i + 1 : i;
  int64_t end = start;
  while (r.IsSymbol(end)) ++end;
  if (end == start) return i;
  while (newlines && (r.IsNewline(end) || (slashes && r.IsChar(end, U'/')))) ++end;
  return end;
}

// `\s*[\r\n]+` (with `newlines`), then `\s+(?!\S)`, then `\s+`. REQUIRES: white space at `i`.
int64_t MatchSpace(const Range& r, int64_t i, bool newlines) {
  const int64_t end = r.SkipClass(i, kSpaceClass);
  if (newlines) {
    for (int64_t last = end; last > i; --last) {
      if (r.IsNewline(last - 1)) return last;
    }
  }
  return end == r.end || end == i + 1 ? end : end - 1;
}

int64_t MatchGpt2(const Range& r, int64_t i) {
  if (const int64_t end = MatchContraction(r, i, false); end > i) return end;
  if (const int64_t end = MatchSpacedRun(r, i, kLetterClass); end > i) return end;
  if (const int64_t end = MatchSpacedRun(r, i, kNumberClass); end > i) return end;
  if (const int64_t end = MatchSymbols(r, i, false, false); end > i) return end;
  return MatchSpace(r, i, false);
}

// kLlama3 and kQwen2 differ in how many digits stay together.
int64_t MatchLlama3(const Range& r, int64_t i, int max_digits) {
  if (const int64_t end = MatchContraction(r, i, true); end > i) return end;
  const int64_t start = r.IsWordPrefix(i) ? i + 1 : i;
  if (const int64_t end = r.SkipClass(start, kLetterClass); end > start) return end;
  if (r.Is(i, kNumberClass)) {
    int64_t end = i + 1;
    while (end - i < max_digits && r.Is(end, kNumberClass)) ++end;
    return end;
  }
  if (const int64_t end = MatchSymbols(r, i, true, false); end > i) return end;
  return MatchSpace(r, i, true);
}

// U*W+ from `start` on, or `start`.
int64_t MatchLowerWord(const Range& r, int64_t start) {
  const int64_t upper_end = r.SkipClass(start, kUpperLikeClass);
  const int64_t end = r.SkipClass(upper_end, kLowerLikeClass);
  if (end > upper_end) return end;
  // U* took everything: it gives back up to the last code point that is W as well.
  for (int64_t last = upper_end; last > start; --last) {
    if (r.Is(last - 1, kLowerLikeClass)) return last;
  }
  return start;
}

// U+W* from `start` on, or `start`.
int64_t MatchUpperWord(const Range& r, int64_t start) {
  const int64_t upper_end = r.SkipClass(start, kUpperLikeClass);
  return upper_end > start ? r.SkipClass(upper_end, kLowerLikeClass) : start;
}

int64_t MatchTekken(const Range& r, int64_t i) {
  for (const auto match : {MatchLowerWord, MatchUpperWord}) {
    if (r.IsWordPrefix(i)) {
      if (const int64_t end = match(r, i + 1); end > i + 1) return end;
    }
    if (const int64_t end = match(r, i); end > i) return end;
  }
  if (r.Is(i, kNumberClass)) return i + 1;
  if (const int64_t end = MatchSymbols(r, i, true, true); end > i) return end;
  return MatchSpace(r, i, true);
}

int64_t MatchDigits(const Range& r, int64_t i) {
  if (r.Is(i, kDigitClass)) return i + 1;
  while (i < r.end && !r.Is(i, kDigitClass)) ++i;
  return i;
}

int64_t Match(PreTokenizerStep step, const Range& r, int64_t i) {
  switch (step) {
    case PreTokenizerStep::kDigits:
      return MatchDigits(r, i);
    case PreTokenizerStep::kGpt2:
      return MatchGpt2(r, i);
    case PreTokenizerStep::kLlama3:
      return MatchLlama3(r, i, 3);
    case PreTokenizerStep::kQwen2:
      return MatchLlama3(r, i, 1);
    case PreTokenizerStep::kTekken:
      return MatchTekken(r, i);
  }
  return r.end;
}

struct NamedRecipe {
  std::string_view name;
  PreTokenizerStep step;
  bool digits = false;
  bool nfc = false;
  // Both are what llama.cpp assumes where the file is silent.
  bool ignore_merges_and_bos = false;
};

// Names as llama.cpp writes them, for the architectures that are served.
constexpr std::array kRecipes = {
    NamedRecipe{.name = "default", .step = PreTokenizerStep::kGpt2},
    NamedRecipe{.name = "gpt-2", .step = PreTokenizerStep::kGpt2},
    NamedRecipe{.name = "smollm", .step = PreTokenizerStep::kGpt2, .digits = true},
    NamedRecipe{
        .name = "llama-bpe", .step = PreTokenizerStep::kLlama3, .ignore_merges_and_bos = true},
    NamedRecipe{.name = "llama3", .step = PreTokenizerStep::kLlama3, .ignore_merges_and_bos = true},
    NamedRecipe{
        .name = "llama-v3", .step = PreTokenizerStep::kLlama3, .ignore_merges_and_bos = true},
    NamedRecipe{.name = "qwen2", .step = PreTokenizerStep::kQwen2, .nfc = true},
    NamedRecipe{.name = "deepseek-r1-qwen", .step = PreTokenizerStep::kQwen2, .nfc = true},
    NamedRecipe{.name = "tekken", .step = PreTokenizerStep::kTekken, .ignore_merges_and_bos = true},
};

constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

absl::StatusOr<PreTokenizerRecipe> FindPreTokenizer(std::string_view ggml_name) {
  for (const NamedRecipe& recipe : kRecipes) {
    if (recipe.name != ggml_name) continue;
    PreTokenizerRecipe result{.steps = {},
                              .nfc = recipe.nfc,
                              .ignore_merges = recipe.ignore_merges_and_bos,
                              .adds_bos = recipe.ignore_merges_and_bos};
    if (recipe.digits) result.steps.push_back(PreTokenizerStep::kDigits);
    result.steps.push_back(recipe.step);
    return result;
  }
  return UnimplementedError("tokenizer.ggml.pre is '{}', which is not a known pre-tokenizer",
                            ggml_name);
}

absl::StatusOr<PreTokenizerStep> FindPreTokenizerStep(std::string_view regex) {
  if (regex == kGpt2Regex) return PreTokenizerStep::kGpt2;
  if (regex == kLlama3Regex) return PreTokenizerStep::kLlama3;
  if (regex == kQwen2Regex) return PreTokenizerStep::kQwen2;
  if (regex == kTekkenRegex) return PreTokenizerStep::kTekken;
  return UnimplementedError("pre-tokenizer pattern is not known: {}", regex);
}

void CodePoints::Assign(std::string_view text) {
  code_points_.clear();
  classes_.clear();
  byte_offsets_.clear();
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = ReadUtf8(text, i);
    code_points_.push_back(c.code_point);
    classes_.push_back(ClassesOf(c.code_point));
    byte_offsets_.push_back(static_cast<uint32_t>(i));
    i += c.length;
  }
  byte_offsets_.push_back(static_cast<uint32_t>(text.size()));
}

void PreTokenize(const CodePoints& text, absl::Span<const PreTokenizerStep> steps,
                 std::vector<int64_t>* ends) {
  ends->clear();
  if (text.size() == 0) return;
  ends->push_back(text.size());
  std::vector<int64_t> coarse;
  for (const PreTokenizerStep step : steps) {
    coarse.swap(*ends);
    ends->clear();
    int64_t begin = 0;
    for (const int64_t end : coarse) {
      const Range range{.text = text, .begin = begin, .end = end};
      while (begin < end) {
        begin = Match(step, range, begin);
        ends->push_back(begin);
      }
    }
  }
}

}  // namespace tokenbutler
