// No text makes encoding slow: four times the text takes about four times as long.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "tests/engine/tokenizer/encode_time.h"
#include "tests/engine/tokenizer/golden_file.h"

namespace tokenbutler {
namespace {

class LinearTimeTest : public testing::TestWithParam<std::string> {};

TEST_P(LinearTimeTest, FourTimesTheTextTakesFourTimesAsLong) {
  const auto json = ReadWholeFile(TokenizerDataPath(GetParam() + ".json"));
  ASSERT_TRUE(json.ok()) << json.status();
  auto spec = ParseTokenizerJson(*json);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto tokenizer = Tokenizer::Create(*std::move(spec));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  constexpr size_t kBytes = 32768;
  const std::vector<HardText> small = MakeHardTexts(kBytes);
  const std::vector<HardText> large = MakeHardTexts(4 * kBytes);
  for (size_t i = 0; i < small.size(); ++i) {
    ASSERT_FALSE(large[i].text.empty());
    const double small_seconds = EncodeSeconds(**tokenizer, small[i].text, 0);
    const double large_seconds = EncodeSeconds(**tokenizer, large[i].text, 9 * small_seconds);
    // Quadratic would be 16. The millisecond keeps the clock's noise out.
    EXPECT_LT(large_seconds, 9 * small_seconds + 1e-3)
        << fmt::format("{}: {} s and {} s", small[i].name, small_seconds, large_seconds);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, LinearTimeTest,
                         testing::Values("json-gpt2", "json-qwen2", "json-llama3", "json-tekken",
                                         "json-llama2", "json-no-prefix", "json-metaspace-first"),
                         [](const auto& info) {
                           std::string name = info.param.substr(5);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace tokenbutler
