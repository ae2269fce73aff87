#include "tests/engine/tokenizer/golden_checks.h"

#include <random>
#include <string_view>
#include <vector>

#include "engine/tokenizer/incremental_decoder.h"
#include "engine/tokenizer/unicode.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gtest/gtest.h"
#include "tests/engine/tokenizer/golden_file.h"

namespace tokenbutler {
namespace {

constexpr int kMaxReports = 10;

// The text between quotes, everything unusual as \x.. bytes.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text.substr(0, 300)) {
    if (c >= 0x20 && c < 0x7F && c != '\\' && c != '"') {
      quoted += c;
    } else {
      quoted += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    }
  }
  return quoted + (text.size() > 300 ? "\"..." : "\"");
}

void ExpectStreams(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special) {
  IncrementalDecoder decoder(&tokenizer, skip_special);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string piece(decoder.Push(id));
    ASSERT_TRUE(IsWellFormedUtf8(piece)) << fmt::format("ids {}", ids);
    streamed += piece;
  }
  const std::string rest(decoder.Finish());
  ASSERT_TRUE(IsWellFormedUtf8(rest)) << fmt::format("ids {}", ids);
  streamed += rest;
  ASSERT_EQ(Quoted(streamed), Quoted(tokenizer.Decode(ids, skip_special)))
      << fmt::format("ids {}, skip_special {}", ids, skip_special);
}

}  // namespace

void ExpectEqualsHuggingFace(const Tokenizer& tokenizer, const std::string& name,
                             size_t min_strings) {
  const auto golden = ReadGoldenFile(name);
  const auto corpus = ReadCorpus();
  ASSERT_TRUE(golden.ok()) << golden.status();
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(tokenizer.vocab_size(), golden->vocab_size);
  ASSERT_GE(golden->encodings.size(), min_strings);
  int num_wrong = 0;
  for (const GoldenEncoding& expected : golden->encodings) {
    const std::string& text = (*corpus)[expected.corpus_index];
    for (const bool parse_special : {false, true}) {
      const std::vector<int32_t> ids = tokenizer.Encode(
          text, {.add_special_tokens = golden->add_special_tokens, .parse_special = parse_special});
      const std::vector<int32_t>& wanted = parse_special ? expected.parsed : expected.literal;
      if (ids == wanted || ++num_wrong > kMaxReports) continue;
      ADD_FAILURE() << fmt::format("text {}, parse_special {}\n  ids {}\n  not {}", Quoted(text),
                                   parse_special, ids, wanted);
    }
  }
  EXPECT_EQ(num_wrong, 0) << "of " << 2 * golden->encodings.size() << " encodings";
  int num_wrong_decodings = 0;
  for (const GoldenDecoding& expected : golden->decodings) {
    for (const bool skip_special : {false, true}) {
      const std::string text = tokenizer.Decode(expected.ids, skip_special);
      const std::string& wanted = skip_special ? expected.text_without_special : expected.text;
      if (text == wanted || ++num_wrong_decodings > kMaxReports) continue;
      ADD_FAILURE() << fmt::format("ids {}, skip_special {}\n  text {}\n  not  {}", expected.ids,
                                   skip_special, Quoted(text), Quoted(wanted));
    }
  }
  EXPECT_EQ(num_wrong_decodings, 0) << "of " << 2 * golden->decodings.size() << " decodings";
}

void ExpectStreamsLikeDecode(const Tokenizer& tokenizer, const std::string& name) {
  const auto golden = ReadGoldenFile(name);
  ASSERT_TRUE(golden.ok()) << golden.status();
  std::vector<std::vector<int32_t>> sequences;
  for (const GoldenDecoding& decoding : golden->decodings) sequences.push_back(decoding.ids);
  for (const GoldenEncoding& encoding : golden->encodings) sequences.push_back(encoding.parsed);
  // Tokens that are not whole characters, by themselves rare among random ids.
  std::vector<int32_t> fragments;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!IsWellFormedUtf8(tokenizer.TokenBytes(id))) fragments.push_back(id);
  }
  std::mt19937 random(20250702);
  for (int n = 0; n < 3000; ++n) {
    std::vector<int32_t> ids(1 + random() % 24);
    for (int32_t& id : ids) {
      const bool fragment = !fragments.empty() && n % 3 > 0 && random() % 3 > 0;
      id = static_cast<int32_t>(fragment ? fragments[random() % fragments.size()]
                                         : random() % tokenizer.vocab_size());
    }
    sequences.push_back(std::move(ids));
  }
  for (const std::vector<int32_t>& ids : sequences) {
    for (const bool skip_special : {false, true}) {
      ASSERT_NO_FATAL_FAILURE(ExpectStreams(tokenizer, ids, skip_special));
    }
  }
}

}  // namespace tokenbutler
