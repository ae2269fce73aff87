// Small tokenizers, one for each way of writing a tokenizer.json, against Hugging Face's library.
#include <memory>
#include <string>
#include <utility>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"
#include "gtest/gtest.h"
#include "tests/engine/tokenizer/golden_checks.h"
#include "tests/engine/tokenizer/golden_file.h"

namespace tokenbutler {
namespace {

class JsonGoldenTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto json = ReadWholeFile(TokenizerDataPath(GetParam() + ".json"));
    ASSERT_TRUE(json.ok()) << json.status();
    auto spec = ParseTokenizerJson(*json);
    ASSERT_TRUE(spec.ok()) << spec.status();
    auto tokenizer = Tokenizer::Create(*std::move(spec));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(JsonGoldenTest, EqualsHuggingFace) {
  ExpectEqualsHuggingFace(*tokenizer_, GetParam(), 1000);
}

TEST_P(JsonGoldenTest, StreamsLikeDecode) { ExpectStreamsLikeDecode(*tokenizer_, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Files, JsonGoldenTest,
                         testing::Values("json-gpt2", "json-qwen2", "json-llama3", "json-tekken",
                                         "json-llama2", "json-no-prefix", "json-metaspace-first",
                                         "json-metaspace-always"),
                         [](const auto& info) {
                           std::string name = info.param.substr(5);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace tokenbutler
