// The tokenizers of real models against Hugging Face's library.
#include <memory>
#include <string>
#include <utility>

#include "engine/tokenizer/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/engine/tokenizer/golden_checks.h"
#include "tests/engine/tokenizer/reference_vocabularies.h"

namespace tokenbutler {
namespace {

class ModelGoldenTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto spec = ReadReferenceSpec(GetParam());
    if (absl::IsNotFound(spec.status())) GTEST_SKIP() << spec.status().message();
    ASSERT_TRUE(spec.ok()) << spec.status();
    auto tokenizer = Tokenizer::Create(*std::move(spec));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(ModelGoldenTest, EqualsHuggingFace) {
  ExpectEqualsHuggingFace(*tokenizer_, GetParam(), 5000);
}

TEST_P(ModelGoldenTest, StreamsLikeDecode) { ExpectStreamsLikeDecode(*tokenizer_, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Models, ModelGoldenTest,
                         testing::Values("smollm2", "qwen2.5", "llama-3", "mistral-v1",
                                         "mistral-v3", "mistral-tekken"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' || c == '.' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace tokenbutler
