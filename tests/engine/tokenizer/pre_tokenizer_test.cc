#include "engine/tokenizer/pre_tokenizer.h"

#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using Step = PreTokenizerStep;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Split(std::string_view text, const std::vector<Step>& steps) {
  CodePoints code_points;
  code_points.Assign(text);
  std::vector<int64_t> ends;
  PreTokenize(code_points, steps, &ends);
  std::vector<std::string> pieces;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    const uint32_t from = code_points.ByteOffset(begin);
    pieces.emplace_back(text.substr(from, code_points.ByteOffset(end) - from));
    begin = end;
  }
  return pieces;
}

TEST(PreTokenizerTest, Gpt2) {
  EXPECT_THAT(Split("Hello  world, it's 2025!\n\n x", {Step::kGpt2}),
              ElementsAre("Hello", " ", " world", ",", " it", "'s", " 2025", "!", "\n\n", " x"));
  EXPECT_THAT(Split("IT'S", {Step::kGpt2}), ElementsAre("IT", "'", "S"));
  EXPECT_THAT(Split("", {Step::kGpt2}), ElementsAre());
}

TEST(PreTokenizerTest, DigitsBeforeGpt2) {
  // The space is a piece of its own: the digit step cut it off.
  EXPECT_THAT(Split("in 2025", {Step::kDigits, Step::kGpt2}),
              ElementsAre("in", " ", "2", "0", "2", "5"));
}

TEST(PreTokenizerTest, Llama3) {
  EXPECT_THAT(Split("It'S 12345 (ok)\r\n  \n  y", {Step::kLlama3}),
              ElementsAre("It", "'S", " ", "123", "45", " (", "ok", ")\r\n", "  \n", " ", " y"));
  // The long s folds to "s", so that it ends a contraction too.
  EXPECT_THAT(Split("I'\u017Ft", {Step::kLlama3}), ElementsAre("I", "'\u017F", "t"));
  EXPECT_THAT(Split("I'xt", {Step::kLlama3}), ElementsAre("I", "'xt"));
}

TEST(PreTokenizerTest, Qwen2TakesDigitsOneByOne) {
  EXPECT_THAT(Split("a12", {Step::kQwen2}), ElementsAre("a", "1", "2"));
}

TEST(PreTokenizerTest, TekkenCutsBeforeUpperCase) {
  EXPECT_THAT(Split("camelCase HTTPServer a/b.\n//", {Step::kTekken}),
              ElementsAre("camel", "Case", " HTTPServer", " a", "/b", ".\n//"));
  EXPECT_THAT(Split("ABC中DEF", {Step::kTekken}), ElementsAre("ABC中", "DEF"));
}

TEST(PreTokenizerTest, TrailingSpaceStaysWhole) {
  EXPECT_THAT(Split("a   ", {Step::kGpt2}), ElementsAre("a", "   "));
  EXPECT_THAT(Split("a   b", {Step::kGpt2}), ElementsAre("a", "  ", " b"));
}

TEST(PreTokenizerTest, KnownNames) {
  for (const char* name : {"default", "gpt-2", "smollm", "llama-bpe", "llama3", "llama-v3", "qwen2",
                           "deepseek-r1-qwen", "tekken"}) {
    EXPECT_TRUE(FindPreTokenizer(name).ok()) << name;
  }
  EXPECT_EQ(FindPreTokenizer("smollm")->steps.size(), 2u);
  EXPECT_TRUE(FindPreTokenizer("qwen2")->nfc);
  EXPECT_TRUE(FindPreTokenizer("llama-bpe")->ignore_merges);
}

TEST(PreTokenizerTest, UnknownNameAndPatternAreRefused) {
  const auto name = FindPreTokenizer("deepseek-v3");
  EXPECT_EQ(name.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(name.status().message()), HasSubstr("deepseek-v3"));
  const auto pattern = FindPreTokenizerStep(R"(\p{Han}+)");
  EXPECT_EQ(pattern.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(pattern.status().message()), HasSubstr(R"(\p{Han}+)"));
}

}  // namespace
}  // namespace tokenbutler
