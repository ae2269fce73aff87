#include "tests/engine/tokenizer/encode_time.h"

#include <time.h>

#include <algorithm>
#include <random>

#include "engine/tokenizer/unicode.h"
#include "tests/engine/tokenizer/golden_file.h"

namespace tokenbutler {
namespace {

std::string Repeat(std::string_view unit, size_t num_bytes) {
  std::string text;
  while (text.size() < num_bytes) text += unit;
  return text;
}

std::string Random(std::u32string_view alphabet, size_t num_bytes) {
  std::mt19937 random(7);
  std::string text;
  while (text.size() < num_bytes) AppendUtf8(alphabet[random() % alphabet.size()], &text);
  return text;
}

std::string Prose(size_t num_bytes) {
  std::string all;
  const auto corpus = ReadCorpus();
  if (corpus.ok()) {
    for (const std::string& text : *corpus) all.append(text).append(" ");
  }
  return all.empty() ? all : Repeat(all, num_bytes).substr(0, num_bytes);
}

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

std::vector<HardText> MakeHardTexts(size_t num_bytes) {
  return {
      {"prose", Prose(num_bytes)},
      {"one letter", Repeat("A", num_bytes)},
      {"one word", Random(U"etaoinshrdluETAOIN", num_bytes)},
      {"one word of one script", Random(U"ابتثجحخدذرزسش", num_bytes)},
      {"spaces", Repeat(" ", num_bytes)},
      {"spaces and newlines", Random(U"   \n\t", num_bytes)},
      {"digits", Random(U"0123456789", num_bytes)},
      {"symbols", Random(U"<|>=-.,", num_bytes)},
      {"marks out of order", Repeat("\u0301\u0316", num_bytes)},
      {"upper then other letters", Random(U"AAAAAAAAA中", num_bytes)},
      {"beginnings of control tokens", Repeat("<|im_star", num_bytes)},
      {"control tokens", Repeat("<|im_start|>", num_bytes)},
      {"swallowed spaces", Repeat("<left>  <right>    ", num_bytes)},
      {"ill-formed bytes", Repeat("\xF0\x9F\x92", num_bytes)},
      {"unknown characters", Random(U"\U00010380\U00010381\U00010382", num_bytes)},
  };
}

double EncodeSeconds(const Tokenizer& tokenizer, std::string_view text, double enough) {
  double best = 1e9;
  for (int run = 0; run < 3 && best >= enough; ++run) {
    const double start = ThreadSeconds();
    const std::vector<int32_t> ids = tokenizer.Encode(text, {.parse_special = true});
    best = std::min(best, ThreadSeconds() - start);
  }
  return best;
}

}  // namespace tokenbutler
