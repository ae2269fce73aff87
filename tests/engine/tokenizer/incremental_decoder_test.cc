#include "engine/tokenizer/incremental_decoder.h"

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using testing::ElementsAre;

// Tokens given as bytes. What real tokenizers make of it is in the golden tests.
class FakeTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view, EncodeOptions) const override { return {}; }
  std::string Decode(absl::Span<const int32_t>, bool) const override { return {}; }
  std::string_view TokenBytes(int32_t id) const override { return tokens[id]; }
  bool IsSpecial(int32_t id) const override { return special.contains(id); }
  bool IsByteFallback(int32_t id) const override { return byte_fallback.contains(id); }
  int vocab_size() const override { return static_cast<int>(tokens.size()); }
  std::optional<int32_t> bos_id() const override { return {}; }
  absl::Span<const int32_t> eos_ids() const override { return {}; }
  bool strips_leading_space() const override { return strips; }

  std::vector<std::string> tokens;
  std::set<int32_t> special, byte_fallback;
  bool strips = false;
};

// The pieces of Push for each token, and of Finish.
std::vector<std::string> Pieces(const FakeTokenizer& tokenizer, bool skip_special = true) {
  IncrementalDecoder decoder(&tokenizer, skip_special);
  std::vector<std::string> pieces;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) pieces.emplace_back(decoder.Push(id));
  pieces.emplace_back(decoder.Finish());
  return pieces;
}

TEST(IncrementalDecoderTest, HoldsBackAnIncompleteCharacter) {
  FakeTokenizer tokenizer;
  tokenizer.tokens = {"a\xF0\x9F", "\x98",
                      "\x80"
                      "b"};
  EXPECT_THAT(Pieces(tokenizer), ElementsAre("a", "", "😀b", ""));
}

TEST(IncrementalDecoderTest, IllFormedBytesComeOutAsSoonAsTheyAre) {
  FakeTokenizer tokenizer;
  tokenizer.tokens = {"\xE2\x82", "x", "\xFF", "\xE2"};
  EXPECT_THAT(Pieces(tokenizer), ElementsAre("", "\uFFFDx", "\uFFFD", "", "\uFFFD"));
}

TEST(IncrementalDecoderTest, SkipsSpecialTokensWithoutEndingACharacter) {
  FakeTokenizer tokenizer;
  tokenizer.tokens = {"\xC3", "<s>", "\xA9"};
  tokenizer.special = {1};
  EXPECT_THAT(Pieces(tokenizer), ElementsAre("", "", "é", ""));
  EXPECT_THAT(Pieces(tokenizer, false), ElementsAre("", "\uFFFD<s>", "\uFFFD", ""));
}

TEST(IncrementalDecoderTest, DropsOneLeadingSpaceOfTheText) {
  FakeTokenizer tokenizer;
  tokenizer.tokens = {"", "  a", " b"};
  tokenizer.strips = true;
  EXPECT_THAT(Pieces(tokenizer), ElementsAre("", " a", " b", ""));
}

TEST(IncrementalDecoderTest, JudgesARunOfByteTokensAsAWhole) {
  FakeTokenizer tokenizer;
  tokenizer.tokens = {"\xC3", "\xA9", "a", "b", "\xC3", "c"};
  tokenizer.byte_fallback = {0, 1, 3, 4};
  EXPECT_THAT(Pieces(tokenizer), ElementsAre("", "", "éa", "", "", "\uFFFD\uFFFDc", ""));
}

TEST(IncrementalDecoderTest, FinishGivesOutAByteRun) {
  FakeTokenizer tokenizer;
  tokenizer.tokens = {" ", "\xC3", "\xA9"};
  tokenizer.byte_fallback = {0, 1, 2};
  tokenizer.strips = true;
  EXPECT_THAT(Pieces(tokenizer), ElementsAre("", "", "", "é"));
}

}  // namespace
}  // namespace tokenbutler
