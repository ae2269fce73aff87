#include "tools/train/corpus.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temporary_folder.h"
#include "tools/train/corpus_manifest.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

// A token for each byte, and one in front of a text if asked for.
class BytesAndBos : public Tokenizer {
 public:
  explicit BytesAndBos(bool has_bos) : has_bos_(has_bos) {}
  std::vector<int32_t> Encode(std::string_view text, EncodeOptions options) const override {
    std::vector<int32_t> ids;
    if (has_bos_ && options.add_special_tokens) ids.push_back(kBos);
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string Decode(absl::Span<const int32_t>, bool) const override { return ""; }
  std::string_view TokenBytes(int32_t) const override { return ""; }
  bool IsSpecial(int32_t id) const override { return id == kBos; }
  int vocab_size() const override { return 257; }
  std::optional<int32_t> bos_id() const override {
    return has_bos_ ? std::optional<int32_t>(kBos) : std::nullopt;
  }
  absl::Span<const int32_t> eos_ids() const override { return {}; }
  bool strips_leading_space() const override { return false; }

  static constexpr int32_t kBos = 256;

 private:
  const bool has_bos_;
};

class CorpusTest : public testing::Test {
 protected:
  // A file of `length` characters, all of them `letter`.
  void Add(char letter, size_t length) {
    folder_.Write(std::string(1, letter) + ".txt", std::string(length, letter));
  }
  CorpusOptions Options(int tokens = 16) const {
    CorpusOptions options;
    options.texts = {folder_.path()};
    options.tokens_per_sequence = tokens;
    options.num_validation = 4;
    return options;
  }
  absl::StatusOr<std::unique_ptr<Corpus>> Make(const CorpusOptions& options) {
    return Corpus::Create(options, tokenizer_);
  }
  std::string Error(const CorpusOptions& options) {
    return std::string(Make(options).status().message());
  }

  TemporaryFolder folder_;
  BytesAndBos tokenizer_{false};
};

TEST_F(CorpusTest, SequencesDependOnSeedAndIndexAlone) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += std::to_string(i) + " ";
  folder_.Write("a.txt", text);
  folder_.Write("b.txt", text);
  const auto one = *Make(Options()), two = *Make(Options());
  EXPECT_EQ(one->Fingerprint(), two->Fingerprint());
  std::vector<std::vector<int32_t>> sequences;
  for (int i = 0; i < 20; ++i) sequences.push_back(*one->Training(i));
  for (int i = 19; i >= 0; --i) EXPECT_EQ(*two->Training(i), sequences[i]) << i;
  EXPECT_GT(std::set(sequences.begin(), sequences.end()).size(), 15u);
  EXPECT_EQ(*one->Training(1'000'000'000'000), *two->Training(1'000'000'000'000));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(*one->Validation(i), *two->Validation(i)) << i;

  CorpusOptions other = Options();
  other.seed = 2;
  EXPECT_NE((*Make(other))->Fingerprint(), one->Fingerprint());
  EXPECT_NE(*(*Make(other))->Training(0), sequences[0]);
  other = Options(17);
  EXPECT_NE((*Make(other))->Fingerprint(), one->Fingerprint());
  folder_.Write("b.txt", text + "!");
  EXPECT_NE((*Make(Options()))->Fingerprint(), one->Fingerprint());
}

TEST_F(CorpusTest, SequencesAreOfOneDocumentAndReachItsEnds) {
  folder_.Write("a.txt", "abcdefghijklmnopqr");  // 3 places
  folder_.Write("b.txt", "ABCDEFGHIJKLMNOP");    // 1 place
  CorpusOptions options = Options();
  options.validation = {folder_.Write("v", "0123456789abcdefg")};
  const auto corpus = *Make(options);
  EXPECT_EQ(corpus->length(), 16);
  EXPECT_EQ(corpus->num_documents(), 2);
  std::map<int32_t, int> begins;
  for (int i = 0; i < 400; ++i) {
    const std::vector<int32_t> ids = *corpus->Training(i);
    ASSERT_EQ(ids.size(), 16u);
    for (size_t k = 1; k < ids.size(); ++k) EXPECT_EQ(ids[k], ids[0] + static_cast<int>(k));
    ++begins[ids[0]];
  }
  // Every place is as likely as every other.
  ASSERT_EQ(begins.size(), 4u);
  for (const int begin : {'a', 'b', 'c', 'A'}) EXPECT_NEAR(begins[begin], 100, 35) << begin;
  for (int i = 0; i < 4; ++i) EXPECT_THAT((*corpus->Validation(i))[0], testing::AnyOf('0', '1'));
  EXPECT_FALSE(corpus->Validation(4).ok());
}

TEST_F(CorpusTest, ValidationDocumentsAreApart) {
  for (char letter = 'a'; letter <= 'z'; ++letter) Add(letter, 40);
  const auto corpus = *Make(Options());
  EXPECT_EQ(corpus->num_documents(), 24);
  EXPECT_EQ(corpus->num_validation_documents(), 2);
  EXPECT_EQ(corpus->num_validation(), 4);
  std::set<int32_t> training, validation;
  for (int i = 0; i < 1000; ++i) training.insert((*corpus->Training(i))[0]);
  for (int i = 0; i < 4; ++i) validation.insert((*corpus->Validation(i))[0]);
  EXPECT_EQ(training.size(), 24u);
  EXPECT_EQ(validation.size(), 2u);
  for (const int32_t letter : validation) EXPECT_EQ(training.count(letter), 0u);
}

TEST_F(CorpusTest, ShortDocumentsAreLeftOutAndCounted) {
  Add('a', 16);
  Add('b', 15);
  Add('c', 30);
  const auto corpus = *Make(Options());
  EXPECT_EQ(corpus->num_documents() + corpus->num_validation_documents(), 2);
  EXPECT_EQ(corpus->num_short_documents(), 1);
  EXPECT_THAT(corpus->Description(), HasSubstr("left out 1 shorter"));
  EXPECT_THAT(corpus->Description(), HasSubstr(corpus->Fingerprint()));
  EXPECT_THAT(corpus->Description(),
              HasSubstr(" tokens, of " + folder_.path().filename().string() + "; "));
}

TEST_F(CorpusTest, WhatTheModelWantsInFrontIsThere) {
  folder_.Write("a.txt", "abcdefghijklmnop");
  folder_.Write("b.txt", "ABCDEFGHIJKLMNOP");
  const BytesAndBos with_bos(true);
  const auto corpus = *Corpus::Create(Options(), with_bos);
  for (int i = 0; i < 20; ++i) {
    const std::vector<int32_t> ids = *corpus->Training(i);
    ASSERT_EQ(ids.size(), 16u);
    EXPECT_EQ(ids[0], BytesAndBos::kBos);
    EXPECT_NE(ids[1], BytesAndBos::kBos);
    EXPECT_EQ(ids[2], ids[1] + 1);
  }
}

TEST_F(CorpusTest, SaysWhatIsWrongWithTheTexts) {
  EXPECT_THAT(Error(Options()), HasSubstr("holds no .txt"));
  folder_.Write("a.txt", "");
  EXPECT_THAT(Error(Options()), HasSubstr("the texts are empty: 1 files, 1 documents"));
  Add('b', 12);
  EXPECT_THAT(Error(Options()),
              HasSubstr("a sequence takes 16 tokens of one (--tokens), the longest of 2 has 12 ("));
  Add('c', 16);
  EXPECT_THAT(Error(Options()), HasSubstr("one document alone has 16 tokens"));
  Add('d', 30);
  EXPECT_TRUE(Make(Options()).ok());
  CorpusOptions options = Options();
  options.validation = {folder_.path() / "a.txt"};
  EXPECT_THAT(Error(options), HasSubstr("the texts are empty"));
  options = Options();
  options.most_tokens = 45;
  EXPECT_THAT(Error(options), HasSubstr("have 46 tokens, must have at most 45 (--max-tokens)"));
  options = Options(1);
  EXPECT_THAT(Error(options), HasSubstr("tokens_per_sequence is 1, must be in [2, "));
  options = Options();
  options.num_validation = 0;
  EXPECT_THAT(Error(options), HasSubstr("num_validation is 0"));
  options = Options();
  options.texts.clear();
  EXPECT_THAT(Error(options), HasSubstr("no texts"));
}

TEST_F(CorpusTest, TheManifestTellsThePackagesOfAPart) {
  std::filesystem::create_directories(folder_.path() / "train");
  std::filesystem::create_directories(folder_.path() / "heldout");
  EXPECT_EQ(PackagesOf({folder_.path() / "train"}), "");
  folder_.Write("manifest.json", R"({"packages": [
      {"package": "b-doc", "version": "1:2-3", "part": "train"},
      {"package": "a-doc", "version": "4", "part": "train"},
      {"package": "c-doc", "version": "5", "part": "heldout"}, 7]})");
  EXPECT_EQ(PackagesOf({folder_.path() / "train"}), "a-doc 4, b-doc 1:2-3");
  EXPECT_EQ(PackagesOf({folder_.path() / "heldout/"}), "c-doc 5");
  EXPECT_EQ(PackagesOf({folder_.path()}), "a-doc 4, b-doc 1:2-3, c-doc 5");
  EXPECT_EQ(PackagesOf({"/nowhere", folder_.path() / "manifest.json"}), "");
  folder_.Write("manifest.json", "{\"packages\": 7}");
  EXPECT_EQ(PackagesOf({folder_.path()}), "");
}

}  // namespace
}  // namespace tokenbutler
