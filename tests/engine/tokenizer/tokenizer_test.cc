#include "engine/tokenizer/tokenizer.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/tokenizer/incremental_decoder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using Kind = TokenizerSpec::Kind;
using TokenType = TokenizerSpec::TokenType;
using testing::ElementsAre;
using testing::HasSubstr;

// Ids: 0 <s>, 1 </s>, 2 a, 3 b, 4 Ġ, 5 ab, 6 Ġab, 7 <tool>, 8 <|eot_id|>
TokenizerSpec ByteLevelSpec() {
  TokenizerSpec spec;
  spec.tokens = {"<s>", "</s>", "a", "b", "Ġ", "ab", "Ġab", "<tool>", "<|eot_id|>"};
  spec.token_types.assign(spec.tokens.size(), TokenType::kNormal);
  spec.token_types[0] = spec.token_types[1] = spec.token_types[8] = TokenType::kControl;
  spec.token_types[7] = TokenType::kUserDefined;
  spec.merges = {"a b", "Ġ ab"};
  spec.pre_tokenizer = "default";
  spec.bos_id = 0;
  spec.eos_id = 1;
  return spec;
}

// Ids: 0 <unk>, 1 <s>, 2 </s>, 3..258 bytes, 259 ▁, 260 a, 261 b, 262 ab, 263 ▁ab
TokenizerSpec SentencePieceSpec() {
  TokenizerSpec spec;
  spec.kind = Kind::kSentencePieceBpe;
  spec.tokens = {"<unk>", "<s>", "</s>"};
  spec.token_types = {TokenType::kUnknown, TokenType::kControl, TokenType::kControl};
  for (int b = 0; b < 256; ++b) {
    spec.tokens.push_back(fmt::format("<0x{:02X}>", b));
    spec.token_types.push_back(TokenType::kByte);
  }
  for (const char* token : {"▁", "a", "b", "ab", "▁ab"}) {
    spec.tokens.emplace_back(token);
    spec.token_types.push_back(TokenType::kNormal);
  }
  spec.scores.assign(spec.tokens.size(), 0.0f);
  for (size_t i = 259; i < spec.tokens.size(); ++i) spec.scores[i] = -static_cast<float>(i - 258);
  spec.bos_id = 1;
  spec.eos_id = 2;
  return spec;
}

std::unique_ptr<Tokenizer> Make(TokenizerSpec spec) {
  auto tokenizer = Tokenizer::Create(std::move(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(TokenizerTest, ByteLevel) {
  const auto tokenizer = Make(ByteLevelSpec());
  EXPECT_THAT(tokenizer->Encode("ab ab", {}), ElementsAre(5, 6));
  EXPECT_EQ(tokenizer->Decode({5, 6}, false), "ab ab");
  EXPECT_EQ(tokenizer->TokenBytes(6), " ab");
  EXPECT_EQ(tokenizer->vocab_size(), 9);
  EXPECT_FALSE(tokenizer->strips_leading_space());
}

TEST(TokenizerTest, BytesWithoutATokenAreLeftOut) {
  EXPECT_THAT(Make(ByteLevelSpec())->Encode("axb", {}), ElementsAre(5));
}

TEST(TokenizerTest, BosAndEosAsTheFileSays) {
  TokenizerSpec spec = ByteLevelSpec();
  spec.add_bos = spec.add_eos = true;
  const auto tokenizer = Make(spec);
  EXPECT_THAT(tokenizer->Encode("a", {}), ElementsAre(0, 2, 1));
  EXPECT_THAT(tokenizer->Encode("a", {.add_special_tokens = false}), ElementsAre(2));
  EXPECT_THAT(tokenizer->Encode("", {}), ElementsAre(0, 1));
}

TEST(TokenizerTest, LlamaBpeAddsBosByDefault) {
  TokenizerSpec spec = ByteLevelSpec();
  spec.pre_tokenizer = "llama-bpe";
  EXPECT_THAT(Make(spec)->Encode("a", {}), ElementsAre(0, 2));
  spec.add_bos = false;
  EXPECT_THAT(Make(spec)->Encode("a", {}), ElementsAre(2));
}

TEST(TokenizerTest, ControlTokensInUserTextStayText) {
  const auto tokenizer = Make(ByteLevelSpec());
  EXPECT_THAT(tokenizer->Encode("a<s>", {}), ElementsAre(2));
  EXPECT_THAT(tokenizer->Encode("a<s>", {.parse_special = true}), ElementsAre(2, 0));
  EXPECT_THAT(tokenizer->Encode("a<tool>", {}), ElementsAre(2, 7));
}

TEST(TokenizerTest, LiteralSpansInIllFormedText) {
  const auto tokenizer = Make(ByteLevelSpec());
  // Bytes:                     0123 4567 89
  const std::string text = "\xFF\xFF<s>\xE2<s>a";
  const std::vector<std::pair<size_t, size_t>> first = {{0, 5}};
  const std::vector<std::pair<size_t, size_t>> second = {{5, 9}};
  const std::vector<std::pair<size_t, size_t>> both = {{1, 3}, {8, 10}};
  EXPECT_THAT(tokenizer->Encode(text, {.parse_special = true}), ElementsAre(0, 0, 2));
  EXPECT_THAT(tokenizer->Encode(text, {.parse_special = true, .literal_spans = first}),
              ElementsAre(0, 2));
  EXPECT_THAT(tokenizer->Encode(text, {.parse_special = true, .literal_spans = second}),
              ElementsAre(0, 2));
  EXPECT_THAT(tokenizer->Encode(text, {.parse_special = true, .literal_spans = both}),
              ElementsAre(2));
}

TEST(TokenizerTest, LiteralSpansInNormalizedText) {
  TokenizerSpec spec = ByteLevelSpec();
  spec.nfc = true;
  spec.pre_tokenizer.clear();
  spec.pre_tokenizer_steps = {PreTokenizerStep::kGpt2};
  spec.added_tokens = {AddedToken{.id = 0, .content = "<s>", .special = true, .normalized = true}};
  const auto tokenizer = Make(spec);
  const std::string text = "e\u0301<s>e\u0301<s>a";  // the accents vanish: 3, 3, 3, 3, 1 bytes
  const std::vector<std::pair<size_t, size_t>> first = {{0, 6}};
  const std::vector<std::pair<size_t, size_t>> second = {{9, 13}};
  EXPECT_THAT(tokenizer->Encode(text, {.parse_special = true}), ElementsAre(0, 0, 2));
  EXPECT_THAT(tokenizer->Encode(text, {.parse_special = true, .literal_spans = first}),
              ElementsAre(0, 2));
  EXPECT_THAT(tokenizer->Encode(text, {.parse_special = true, .literal_spans = second}),
              ElementsAre(0, 2));
}

TEST(TokenizerTest, LiteralSpansDoNotCutMerges) {
  const auto tokenizer = Make(ByteLevelSpec());
  const std::vector<std::pair<size_t, size_t>> spans = {{1, 2}};
  EXPECT_THAT(tokenizer->Encode("ab", {.parse_special = true, .literal_spans = spans}),
              ElementsAre(5));
}

TEST(TokenizerTest, SentencePiece) {
  const auto tokenizer = Make(SentencePieceSpec());
  EXPECT_THAT(tokenizer->Encode("ab ab", {}), ElementsAre(1, 263, 263));
  EXPECT_THAT(tokenizer->Encode("é", {.add_special_tokens = false}),
              ElementsAre(259, 3 + 0xC3, 3 + 0xA9));
  EXPECT_THAT(tokenizer->Encode("", {.add_special_tokens = false}), ElementsAre());
  EXPECT_EQ(tokenizer->Decode({1, 263, 263}, true), "ab ab");
  EXPECT_EQ(tokenizer->Decode({1, 263}, false), "<s> ab");
  EXPECT_EQ(tokenizer->Decode({3 + 0xC3, 260}, true), "\uFFFDa");
  EXPECT_EQ(tokenizer->Decode({3 + 'x', 3 + 0xC3}, true), "\uFFFD\uFFFD");  // a run is judged whole
  EXPECT_TRUE(tokenizer->strips_leading_space());
  EXPECT_TRUE(tokenizer->IsByteFallback(3));
  EXPECT_EQ(tokenizer->TokenBytes(3 + 'x'), "x");
}

TEST(TokenizerTest, SentencePieceWithoutSpacePrefix) {
  TokenizerSpec spec = SentencePieceSpec();
  spec.add_space_prefix = false;
  spec.add_bos = false;
  const auto tokenizer = Make(spec);
  EXPECT_THAT(tokenizer->Encode("ab ab", {}), ElementsAre(262, 263));
  EXPECT_EQ(tokenizer->Decode({263}, true), " ab");
}

TEST(TokenizerTest, EosIdsHaveEveryEndOfTurnOnce) {
  TokenizerSpec spec = ByteLevelSpec();
  spec.eot_id = 8;
  spec.extra_eos_ids = {3, 1};
  EXPECT_THAT(Make(spec)->eos_ids(), ElementsAre(1, 8, 3));
  EXPECT_EQ(Make(spec)->bos_id(), 0);
}

struct BadSpec {
  std::string field;  // what the message has to name
  std::function<void(TokenizerSpec*)> spoil;
  bool sentence_piece = false;
};

TEST(TokenizerTest, SpecsThatContradictThemselvesAreRefused) {
  const std::vector<BadSpec> rows = {
      {"tokens has 0", [](TokenizerSpec* s) { *s = TokenizerSpec(); }},
      {"tokens[2]", [](TokenizerSpec* s) { s->tokens[2] = "\xFF"; }},
      {"token_types has 1", [](TokenizerSpec* s) { s->token_types.resize(1); }},
      {"merges[1] is 'ab'", [](TokenizerSpec* s) { s->merges[1] = "ab"; }},
      {"merges[0] is 'a b c'", [](TokenizerSpec* s) { s->merges[0] = "a b c"; }},
      {"merges[1] needs the token 'x'", [](TokenizerSpec* s) { s->merges[1] = "a x"; }},
      {"merges[1] needs the token 'ba'", [](TokenizerSpec* s) { s->merges[1] = "b a"; }},
      {"bos_id is 9", [](TokenizerSpec* s) { s->bos_id = 9; }},
      {"eos_id is -1", [](TokenizerSpec* s) { s->eos_id = -1; }},
      {"unk_id", [](TokenizerSpec* s) { s->unk_id = 1 << 30; }},
      {"pad_id", [](TokenizerSpec* s) { s->pad_id = 9; }},
      {"eot_id", [](TokenizerSpec* s) { s->eot_id = 9; }},
      {"extra_eos_ids", [](TokenizerSpec* s) { s->extra_eos_ids = {9}; }},
      {"prefix_ids", [](TokenizerSpec* s) { s->prefix_ids = {{9}}; }},
      {"suffix_ids", [](TokenizerSpec* s) { s->suffix_ids = {{-9}}; }},
      {"added_tokens.id",
       [](TokenizerSpec* s) { s->added_tokens = {AddedToken{.id = 9, .content = "x"}}; }},
      {"added_tokens.content",
       [](TokenizerSpec* s) { s->added_tokens = {AddedToken{.id = 1, .content = "\xC0"}}; }},
      {"add_bos", [](TokenizerSpec* s) { s->bos_id.reset(), s->add_bos = true; }},
      {"add_eos", [](TokenizerSpec* s) { s->eos_id.reset(), s->add_eos = true; }},
      {"pre_tokenizer_steps",
       [](TokenizerSpec* s) { s->pre_tokenizer_steps = {PreTokenizerStep::kGpt2}; }},
      {"scores has 3", [](TokenizerSpec* s) { s->scores.resize(3); }, true},
      {"scores[5] is NaN",
       [](TokenizerSpec* s) { s->scores[5] = std::numeric_limits<float>::quiet_NaN(); }, true},
      {"pre_tokenizer_steps",
       [](TokenizerSpec* s) { s->pre_tokenizer_steps = {PreTokenizerStep::kGpt2}; }, true},
  };
  for (const BadSpec& row : rows) {
    TokenizerSpec spec = row.sentence_piece ? SentencePieceSpec() : ByteLevelSpec();
    row.spoil(&spec);
    const auto tokenizer = Tokenizer::Create(std::move(spec));
    ASSERT_FALSE(tokenizer.ok()) << row.field;
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << row.field;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(row.field));
  }
}

TEST(TokenizerTest, IdsThatAreNoTokenHaveNoText) {
  const auto byte_level = Make(ByteLevelSpec());
  EXPECT_EQ(byte_level->Decode({2, 9, -1, 3}, true), "ab");
  EXPECT_EQ(byte_level->TokenBytes(9), "");
  EXPECT_FALSE(byte_level->IsSpecial(-1));
  const auto sentence_piece = Make(SentencePieceSpec());
  const std::vector<int32_t> ids = {3 + 0xC3, 264, -5, 3 + 0xA9, 1 << 30};
  EXPECT_EQ(sentence_piece->Decode(ids, true), "é");
  IncrementalDecoder decoder(sentence_piece.get(), true);
  std::string streamed;
  for (const int32_t id : ids) streamed += decoder.Push(id);
  streamed += decoder.Finish();
  EXPECT_EQ(streamed, "é");
}

TEST(TokenizerTest, ManyThreadsAtOnce) {
  const auto byte_level = Make(ByteLevelSpec());
  const auto sentence_piece = Make(SentencePieceSpec());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) {
        EXPECT_THAT(byte_level->Encode("ab ab", {}), ElementsAre(5, 6));
        EXPECT_THAT(sentence_piece->Encode("ab ab", {}), ElementsAre(1, 263, 263));
        EXPECT_EQ(sentence_piece->Decode({1, 263, 263}, true), "ab ab");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TokenizerTest, UnknownPreTokenizerIsRefusedByName) {
  TokenizerSpec spec = ByteLevelSpec();
  spec.pre_tokenizer = "gpt-5";
  const auto tokenizer = Tokenizer::Create(std::move(spec));
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("gpt-5"));
}

}  // namespace
}  // namespace tokenbutler
