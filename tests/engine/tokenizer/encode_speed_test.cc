// A megabyte in under a second, whatever the text, with the vocabularies of real models.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/engine/tokenizer/encode_time.h"
#include "tests/engine/tokenizer/reference_vocabularies.h"

namespace tokenbutler {
namespace {

class EncodeSpeedTest : public testing::TestWithParam<std::string> {};

TEST_P(EncodeSpeedTest, AMegabyteInUnderASecond) {
  auto spec = ReadReferenceSpec(GetParam());
  if (absl::IsNotFound(spec.status())) GTEST_SKIP() << spec.status().message();
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto tokenizer = Tokenizer::Create(*std::move(spec));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const HardText& hard : MakeHardTexts(1 << 20)) {
    EXPECT_LT(EncodeSeconds(**tokenizer, hard.text, 1.0), 1.0) << hard.name;
  }
}

TEST_P(EncodeSpeedTest, ALongRunOfOneLetter) {
  auto spec = ReadReferenceSpec(GetParam());
  if (absl::IsNotFound(spec.status())) GTEST_SKIP() << spec.status().message();
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto tokenizer = Tokenizer::Create(*std::move(spec));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_LT(EncodeSeconds(**tokenizer, std::string(131072, 'A'), 0.25), 0.25);
}

INSTANTIATE_TEST_SUITE_P(Models, EncodeSpeedTest,
                         testing::Values("smollm2", "llama-3", "mistral-v1"), [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace tokenbutler
