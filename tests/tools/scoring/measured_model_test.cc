#include "tools/scoring/measured_model.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/scoring/prefill_cache.h"

namespace tokenbutler {
namespace {

class MeasuredModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto model = MeasuredModel::Create(
        {.model = std::string(TOKENBUTLER_TEST_DATA) + "/tiny_models/qwen2-none",
         .dtype = "float32",
         .context_len = 4096,
         .num_blocks = [](const SelectionResources&) { return 40; }},
        pool_);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  static std::vector<int32_t> Tokens(int count) {
    std::vector<int32_t> tokens(count);
    for (int i = 0; i < count; ++i) tokens[i] = (i * 37 + i / 7) % 96;
    return tokens;
  }
  std::vector<float> Logits() {
    const absl::Span<const float> logits = model_->runner().decode_logits(0);
    return {logits.begin(), logits.end()};
  }
  std::unique_ptr<MeasuredSequence> Prefilled(const std::vector<int32_t>& tokens) {
    auto sequence = MeasuredSequence::Create(*model_, {}, static_cast<int>(tokens.size()) + 8);
    EXPECT_TRUE(sequence.ok()) << sequence.status();
    EXPECT_TRUE((*sequence)->Prefill(tokens, 64).ok());
    return *std::move(sequence);
  }

  static constexpr AttentionParams kSparse{
      .policy = AttentionPolicy::kExact, .token_budget = 200, .sink_tokens = 4, .local_window = 16};
  ComputePool pool_{2};
  std::unique_ptr<MeasuredModel> model_;
};

TEST_F(MeasuredModelTest, RopeIsScaledBeyondTheModelsContext) {
  EXPECT_GE(model_->config().max_position, 4096);
  EXPECT_THAT(model_->rope_scaling(), ::testing::StartsWith("yarn x "));
}

TEST_F(MeasuredModelTest, BranchesDecodeLikeTheTrunkAndLeaveItAlone) {
  const auto trunk = Prefilled(Tokens(300));  // two full blocks of 128, one shared in part
  const auto other = MeasuredSequence::Branch(*model_, {}, *trunk, 300, 308);
  const auto branch = MeasuredSequence::Branch(*model_, {}, *trunk, 300, 308);
  ASSERT_TRUE(other.ok() && branch.ok());
  ASSERT_TRUE((*other)->Decode(5).ok());  // writes its row into its own copy
  ASSERT_TRUE((*branch)->Decode(6).ok());
  const std::vector<float> of_branch = Logits();
  ASSERT_TRUE(trunk->Decode(6).ok());
  EXPECT_EQ(Logits(), of_branch);
}

TEST_F(MeasuredModelTest, SparseBranchesAttendToTheirBudget) {
  const auto trunk = Prefilled(Tokens(300));
  const auto branch = MeasuredSequence::Branch(*model_, kSparse, *trunk, 300, 308);
  ASSERT_TRUE(branch.ok()) << branch.status();
  ASSERT_TRUE((*branch)->Decode(6).ok());
  const AttentionStats stats = (*branch)->stats();
  EXPECT_EQ(stats.attended_tokens, 200 * stats.attended_lists);
  EXPECT_EQ(stats.context_tokens, 301 * stats.attended_lists);
}

// What is stored for a model is found by it, and nothing before that.
class PrefillCacheTest : public MeasuredModelTest {
 protected:
  PrefillCacheTest() { std::filesystem::remove_all(folder_); }
  ~PrefillCacheTest() override { std::filesystem::remove_all(folder_); }

  void ExpectOwnFile(MeasuredModel::Options options, const std::vector<int32_t>& tokens) {
    options.model = std::string(TOKENBUTLER_TEST_DATA) + "/tiny_models/qwen2-none";
    options.context_len = 256;
    options.num_blocks = [](const SelectionResources&) { return 16; };
    auto model = MeasuredModel::Create(options, pool_);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->layout().block_size, options.block_size);
    const PrefillCache cache(folder_, "tiny", **model);
    auto sequence = MeasuredSequence::Create(**model, {}, static_cast<int>(tokens.size()));
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    EXPECT_EQ(cache.Load(tokens), nullptr);
    ASSERT_TRUE((*sequence)->Prefill(tokens, 64).ok());
    ASSERT_TRUE(cache.Store(tokens, (*sequence)->table()).ok());
    EXPECT_NE(cache.Load(tokens), nullptr);
  }

  const std::string folder_ = ::testing::TempDir() + "/prefill_cache_test";
};

// A cache of one type, computed in another, must not pass for one that was not.
TEST_F(PrefillCacheTest, FilesOfDifferentTypesAreToldApart) {
  const std::pair<const char*, const char*> dtypes[] = {
      {"float32", ""}, {"float32", "bfloat16"}, {"float32", "int8"}, {"bfloat16", ""}};
  for (const auto& [dtype, kv_dtype] : dtypes) {
    SCOPED_TRACE(std::string(dtype) + " " + kv_dtype);
    MeasuredModel::Options options;
    options.dtype = dtype;
    options.kv_dtype = kv_dtype;
    ExpectOwnFile(options, Tokens(140));
  }
}

// 256 tokens are as many bytes in blocks of 16 as in blocks of 128, in another order.
TEST_F(PrefillCacheTest, FilesOfDifferentBlocksAreToldApart) {
  for (const int block_size : {128, 16}) {
    SCOPED_TRACE(block_size);
    MeasuredModel::Options options;
    options.dtype = "float32";
    options.block_size = block_size;
    ExpectOwnFile(options, Tokens(256));
  }
}

TEST_F(MeasuredModelTest, BlocksAreGivenBackAndRunOutWithASentence) {
  {
    const auto trunk = Prefilled(Tokens(300));
    EXPECT_EQ(model_->blocks().num_used(), 3);
    const auto branch = MeasuredSequence::Branch(*model_, {}, *trunk, 300, 308);
    EXPECT_EQ(model_->blocks().num_used(), 4);
  }
  EXPECT_EQ(model_->blocks().num_used(), 0);
  const auto too_long = MeasuredSequence::Create(*model_, {}, 41 * 128);
  EXPECT_THAT(std::string(too_long.status().message()),
              ::testing::HasSubstr("needs 41 blocks, 40 are free"));
  EXPECT_EQ(model_->blocks().num_used(), 0);
}

TEST_F(MeasuredModelTest, PrefilledRowsComeBackFromTheirFile) {
  const std::string folder = ::testing::TempDir() + "measured_model_test-cache";
  std::filesystem::remove_all(folder);
  const PrefillCache cache(folder, "tiny", *model_);
  const std::vector<int32_t> tokens = Tokens(300);
  auto loaded = MeasuredSequence::Create(*model_, {}, 308);
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(cache.Load(tokens), nullptr);
  const auto trunk = Prefilled(tokens);
  ASSERT_TRUE(cache.Store(tokens, trunk->table()).ok());
  const auto rows = cache.Load(tokens);
  ASSERT_NE(rows, nullptr);
  (*loaded)->CopyIn(*rows);
  EXPECT_EQ((*loaded)->table().num_tokens, 300);
  EXPECT_EQ(cache.Load(Tokens(299)), nullptr);  // another text
  // Other weights, and a file in which a byte has changed.
  EXPECT_EQ(PrefillCache(folder, "other", *model_).Load(tokens), nullptr);
  const std::filesystem::path file = *std::filesystem::directory_iterator(folder);
  {
    std::fstream damage(file, std::ios::in | std::ios::out | std::ios::binary);
    damage.seekg(1000);
    const auto byte = static_cast<char>(damage.get());
    damage.seekp(1000);
    damage.put(static_cast<char>(byte ^ 1));
  }
  EXPECT_EQ(cache.Load(tokens), nullptr);
  ASSERT_TRUE((*loaded)->Decode(6).ok());
  const std::vector<float> of_loaded = Logits();
  ASSERT_TRUE(trunk->Decode(6).ok());
  EXPECT_EQ(Logits(), of_loaded);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tokenbutler
