#include "engine/output_text.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "engine/tokenizer/incremental_decoder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/byte_tokenizer.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kEos = ByteTokenizer::kEos;

// Tokens of several bytes: id -> piece; the last id is EOS.
class PieceTokenizer : public ByteTokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {
    pieces_.emplace_back("</s>");
    eos_ = {static_cast<int32_t>(pieces_.size()) - 1};
  }
  std::string_view TokenBytes(int32_t id) const override { return pieces_[id]; }
  bool IsSpecial(int32_t id) const override { return id == eos_[0]; }
  int vocab_size() const override { return static_cast<int>(pieces_.size()); }
  absl::Span<const int32_t> eos_ids() const override { return eos_; }

 private:
  std::vector<std::string> pieces_;
  std::vector<int32_t> eos_;
};

struct Collected {
  std::string text;
  std::vector<std::string> chunks;
  std::vector<int32_t> ids;
  size_t num_logprobs = 0;
  std::optional<StopEvent> stop;
  int tokens_used = 0;
};

void Add(const OutputChunk* chunk, Collected* out) {
  if (chunk == nullptr) return;
  EXPECT_FALSE(chunk->text.empty() && chunk->token_ids.empty() && chunk->logprobs.empty());
  out->text += chunk->text;
  out->chunks.push_back(chunk->text);
  out->ids.insert(out->ids.end(), chunk->token_ids.begin(), chunk->token_ids.end());
  out->num_logprobs += chunk->logprobs.size();
}

Collected Stream(const Tokenizer& tokenizer, const OutputTextOptions& options,
                 const std::vector<int32_t>& ids) {
  OutputText output(&tokenizer, options);
  Collected collected;
  for (int32_t id : ids) {
    OutputText::Update update = output.Append(id);
    ++collected.tokens_used;
    Add(update.chunk, &collected);
    if (update.stop.has_value()) {
      collected.stop = update.stop;
      return collected;
    }
  }
  OutputText::Update update = output.Flush();
  Add(update.chunk, &collected);
  collected.stop = update.stop;
  return collected;
}

std::vector<int32_t> Bytes(std::string_view text) {
  std::vector<int32_t> ids;
  for (char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

bool IsWholeUtf8(const std::string& text) {
  // IncrementalDecoder replaces ill-formed bytes, so a cut inside a character shows at the borders.
  const auto continuation = [](char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; };
  if (text.empty()) return true;
  if (continuation(text.front())) return false;
  size_t lead = text.size() - 1;
  while (lead > 0 && continuation(text[lead])) --lead;
  const auto byte = static_cast<uint8_t>(text[lead]);
  const size_t length = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  return text.size() - lead == length;
}

TEST(OutputTextTest, StreamsEachTokenAtOnce) {
  const ByteTokenizer tokenizer;
  EXPECT_THAT(Stream(tokenizer, {}, Bytes("abc")).chunks, ElementsAre("a", "b", "c"));
}

TEST(OutputTextTest, HoldsBackIncompleteCharacters) {
  const ByteTokenizer tokenizer;
  EXPECT_THAT(Stream(tokenizer, {}, Bytes("é🙂!")).chunks, ElementsAre("é", "🙂", "!"));
  EXPECT_THAT(Stream(tokenizer, {}, Bytes("a\xF0\x9F")).chunks, ElementsAre("a", "\uFFFD"));
}

TEST(OutputTextTest, StopStringAcrossTokens) {
  const ByteTokenizer tokenizer;
  OutputTextOptions options;
  options.stop.strings = {"END"};
  const Collected result = Stream(tokenizer, options, Bytes("abENcEND!"));
  EXPECT_EQ(result.text, "abENc");
  EXPECT_THAT(result.chunks, ElementsAre("a", "b", "ENc"));
  ASSERT_TRUE(result.stop.has_value());
  EXPECT_EQ(result.stop->reason, FinishReason::kStopString);
  EXPECT_EQ(result.stop->matched_stop_string, "END");
  EXPECT_EQ(result.tokens_used, 8);
}

TEST(OutputTextTest, StopStringInsideAToken) {
  const PieceTokenizer tokenizer({"hello wo", "rld. And", " more"});
  OutputTextOptions options;
  options.stop.strings = {"world."};
  EXPECT_EQ(Stream(tokenizer, options, {0, 1, 2}).text, "hello ");
  options.stop.include_in_output = true;
  EXPECT_EQ(Stream(tokenizer, options, {0, 1, 2}).text, "hello world.");
}

TEST(OutputTextTest, HeldBackTextComesOutAtTheEnd) {
  const ByteTokenizer tokenizer;
  OutputTextOptions options;
  options.stop.strings = {"END"};
  EXPECT_THAT(Stream(tokenizer, options, Bytes("abEN")).chunks, ElementsAre("a", "b", "EN"));
}

TEST(OutputTextTest, EosEndsAndItsTextIsNotShown) {
  const ByteTokenizer tokenizer;
  OutputTextOptions options;
  options.output.skip_special_tokens = false;
  options.stop.strings = {"xyz"};
  std::vector<int32_t> ids = Bytes("ax");
  ids.push_back(kEos);
  Collected result = Stream(tokenizer, options, ids);
  EXPECT_EQ(result.text, "ax");
  EXPECT_EQ(result.stop->reason, FinishReason::kEos);
  EXPECT_EQ(result.stop->matched_token_id, kEos);
  options.stop.include_in_output = true;
  EXPECT_EQ(Stream(tokenizer, options, ids).text, "ax</s>");
  options.output.skip_special_tokens = true;
  EXPECT_EQ(Stream(tokenizer, options, ids).text, "ax");
}

TEST(OutputTextTest, IgnoredEosGoesOn) {
  const ByteTokenizer tokenizer;
  OutputTextOptions options;
  options.stop.ignore_eos = true;
  const Collected result = Stream(tokenizer, options, {'a', kEos, 'b'});
  EXPECT_EQ(result.text, "ab");
  EXPECT_FALSE(result.stop.has_value());
}

TEST(OutputTextTest, StopTokenIds) {
  const ByteTokenizer tokenizer;
  OutputTextOptions options;
  options.stop.token_ids = {'c', kEos};
  options.stop.ignore_eos = true;
  Collected result = Stream(tokenizer, options, Bytes("abcd"));
  EXPECT_EQ(result.text, "ab");
  EXPECT_EQ(result.stop->reason, FinishReason::kStopToken);
  EXPECT_EQ(result.stop->matched_token_id, 'c');
  result = Stream(tokenizer, options, {'a', kEos});
  EXPECT_EQ(result.stop->reason, FinishReason::kStopToken);
  options.stop.include_in_output = true;
  EXPECT_EQ(Stream(tokenizer, options, Bytes("abcd")).text, "abc");
}

TEST(OutputTextTest, NothingStopsBeforeMinTokens) {
  const ByteTokenizer tokenizer;
  OutputTextOptions options;
  options.min_tokens = 4;
  options.stop.strings = {"ab"};
  options.stop.token_ids = {'z'};
  EXPECT_EQ(Stream(tokenizer, options, Bytes("abzxyab!")).text, "abzxy");
  // A stop string may begin before and end after.
  EXPECT_EQ(Stream(tokenizer, options, Bytes("xyzab!")).text, "xyz");
  EXPECT_EQ(Stream(tokenizer, options, Bytes("xyzxz!")).text, "xyzx");
}

TEST(OutputTextTest, StreamIntervalMergesTokens) {
  const ByteTokenizer tokenizer;
  OutputTextOptions options;
  options.output.stream_interval = 3;
  EXPECT_THAT(Stream(tokenizer, options, Bytes("abcdefgh")).chunks,
              ElementsAre("abc", "def", "gh"));
}

TEST(OutputTextTest, IdsAndLogprobsCoverEveryToken) {
  const ByteTokenizer tokenizer;
  OutputTextOptions options;
  options.output.return_token_ids = true;
  options.logprobs = true;
  options.stop.strings = {"END"};
  const Collected result = Stream(tokenizer, options, Bytes("é.END"));
  EXPECT_EQ(result.ids, Bytes("é.END"));
  EXPECT_EQ(result.num_logprobs, 6u);
  EXPECT_EQ(result.text, "é.");
}

TEST(OutputTextTest, NoEmptyChunksForSpecialTokens) {
  const ByteTokenizer tokenizer;
  OutputTextOptions options;
  options.stop.ignore_eos = true;
  EXPECT_THAT(Stream(tokenizer, options, {kEos, 'a', kEos, kEos}).chunks, ElementsAre("a"));
}

TEST(OutputTextTest, TextFlushedAtTheEndCanCompleteAStopString) {
  const ByteTokenizer tokenizer;
  OutputTextOptions options;
  options.stop.strings = {"a\uFFFD"};
  const Collected result = Stream(tokenizer, options, Bytes("xa\xF0\x9F"));
  EXPECT_EQ(result.text, "x");
  EXPECT_EQ(result.stop->reason, FinishReason::kStopString);
}

// For any division of any bytes into tokens: what comes out is the decoded text up to the first
// stop string, in whole characters, and no prefix of a stop string comes out before it is known
// not to become one.
TEST(OutputTextTest, RandomTextsAndSplits) {
  std::mt19937 random(7);
  const std::vector<std::string> alphabet = {"a", "b", "é", "漢", "🙂", "\xF0\x9F", "\xC3", " "};
  for (int round = 0; round < 4000; ++round) {
    std::string bytes;
    for (int i = random() % 40; i > 0; --i) bytes += alphabet[random() % alphabet.size()];
    std::vector<std::string> pieces;
    std::vector<int32_t> ids;
    for (size_t at = 0; at < bytes.size();) {
      pieces.push_back(bytes.substr(at, 1 + random() % 7));
      at += pieces.back().size();
      ids.push_back(static_cast<int32_t>(ids.size()));
    }
    const PieceTokenizer tokenizer(pieces);
    OutputTextOptions options;
    for (int i = random() % 4; i > 0; --i) {
      std::string stop;
      for (int j = 1 + random() % 3; j > 0; --j) stop += alphabet[random() % 5];
      options.stop.strings.push_back(stop);
    }
    options.output.stream_interval = 1 + random() % 4;
    options.output.return_token_ids = random() % 2;
    options.stop.include_in_output = random() % 2;

    IncrementalDecoder decoder(&tokenizer, true);
    std::string decoded;
    for (int32_t id : ids) decoded += decoder.Push(id);
    decoded += decoder.Finish();
    size_t first_end = std::string::npos, first_length = 0;
    for (const std::string& stop : options.stop.strings) {
      const size_t at = decoded.find(stop);
      if (at == std::string::npos) continue;
      const size_t end = at + stop.size();
      if (end < first_end || (end == first_end && stop.size() > first_length)) {
        first_end = end;
        first_length = stop.size();
      }
    }
    std::string expected = decoded;
    if (first_end != std::string::npos) {
      expected = decoded.substr(0, first_end - (options.stop.include_in_output ? 0 : first_length));
    }
    const Collected result = Stream(tokenizer, options, ids);
    ASSERT_EQ(result.text, expected);
    ASSERT_EQ(result.stop.has_value(), first_end != std::string::npos);
    for (const std::string& chunk : result.chunks) ASSERT_TRUE(IsWholeUtf8(chunk)) << chunk;
    if (options.output.return_token_ids) {
      ASSERT_EQ(result.ids.size(), static_cast<size_t>(result.tokens_used));
    }
  }
}

// A long stop string that almost matches all the time is held back without quadratic copying.
TEST(OutputTextTest, LongHeldBackTextIsLinear) {
  const ByteTokenizer tokenizer;
  OutputTextOptions options;
  options.stop.strings = {std::string(20'000, 'a') + "b"};
  const std::vector<int32_t> ids(300'000, 'a');
  EXPECT_EQ(Stream(tokenizer, options, ids).text.size(), 300'000u);
}

}  // namespace
}  // namespace tokenbutler
