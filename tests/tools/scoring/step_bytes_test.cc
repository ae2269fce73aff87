#include "tools/scoring/step_bytes.h"

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

// 2 layers x 3 KV heads x 64 channels, K and V, bf16: 1536 bytes a token.
constexpr KvLayout kLayout{.num_layers = 2, .num_kv_heads = 3, .head_dim = 64};
constexpr int kContext = 128 * 1000;

StepBytes Of(AttentionParams params, double attended) {
  return BytesOfStep({.params = params,
                      .hidden_size = 1024,
                      .kv = kLayout,
                      .state = {.record_bytes = 256},
                      .context_len = kContext,
                      .attended_tokens = attended});
}

TEST(StepBytesTest, DenseStreamsTheWholeContext) {
  const StepBytes bytes = Of({}, kContext);
  EXPECT_EQ(bytes.streamed, 1536.0 * kContext);
  EXPECT_EQ(bytes.gathered, 0);
  // 1 MB of weights and the rows at 10 GB/s.
  EXPECT_NEAR(bytes.FloorMs(1e6, 10e9, 1), 0.1 + 1536.0 * kContext / 1e7, 1e-9);
}

TEST(StepBytesTest, Int8RowsCountWithTheirScales) {
  KvLayout kv = kLayout;
  kv.dtype = DType::kI8;
  StepShape shape{.params = {.policy = AttentionPolicy::kExact},
                  .hidden_size = 1024,
                  .kv = kv,
                  .state = {},
                  .context_len = kContext,
                  .attended_tokens = 100};
  // 2 layers x 3 KV heads x (64 + 4) bytes for a key, the same for a value.
  EXPECT_EQ(BytesOfStep(shape).gathered, 816.0 * 100);
  EXPECT_EQ(BytesOfStep(shape).streamed, 408.0 * kContext);
}

TEST(StepBytesTest, SparsePoliciesGatherWhatTheyAttendTo) {
  const StepBytes bytes = Of({.policy = AttentionPolicy::kRandom}, 100);
  EXPECT_EQ(bytes.gathered, 153600);
  EXPECT_EQ(bytes.streamed, 0);
  EXPECT_NEAR(bytes.FloorMs(0, 1, 1e9), 0.1536, 1e-9);
}

TEST(StepBytesTest, AScanCountsOnceAnInterval) {
  AttentionParams params{.policy = AttentionPolicy::kExact};
  EXPECT_EQ(Of(params, 100).streamed, 1536.0 / 2 * kContext);  // the keys
  params.prediction_interval = 8;
  EXPECT_EQ(Of(params, 100).streamed, 1536.0 / 16 * kContext);
  // Records of 256 bytes for 6000 blocks of layers and KV heads.
  EXPECT_EQ(Of({.policy = AttentionPolicy::kQuest}, 100).streamed, 256.0 * 6000);
}

TEST(StepBytesTest, CandidatesKeysAreRead) {
  AttentionParams params{.policy = AttentionPolicy::kSketch};
  params.prediction_interval = 4;
  const double scans = Of(params, 100).streamed, gathered = Of(params, 100).gathered;
  params.candidates = 1000;
  params.token_budget = 600;
  // Those that are not attended to: 6 layers and KV heads, 128 bytes a key.
  EXPECT_EQ(Of(params, 100).streamed, scans);
  EXPECT_EQ(Of(params, 100).gathered, gathered + 400 * 128 * 6);
}

TEST(StepBytesTest, XkvReadsItsFactorsInEveryLayer) {
  // Ranks 128 and 192, bf16, 2 layers.
  const StepBytes bytes = Of({.policy = AttentionPolicy::kXkv}, kContext);
  EXPECT_EQ(bytes.streamed, 2.0 * 2 * (128 + 192) * kContext);
  EXPECT_EQ(bytes.gathered, 0);
}

TEST(StepBytesTest, PartialScansReadAShareOfTheRecords) {
  AttentionParams params{.policy = AttentionPolicy::kSketch};
  // A block of 128 tokens: 2 x 128 bytes of scales and zeros, 2048 of codes.
  EXPECT_EQ(Of(params, 100).streamed, (256.0 + 2048) * 6000);
  params.scan_fraction = 0.25;
  EXPECT_EQ(Of(params, 100).streamed, (256.0 + 2048) * 6000);  // none between two full ones
  params.prediction_interval = 4;
  EXPECT_EQ(Of(params, 100).streamed, (256.0 + 2048) * 6000 * (0.25 + 0.75 * 0.25));
  params.scan_fraction = 1;
  EXPECT_EQ(Of(params, 100).streamed, (256.0 + 2048) * 6000 * 0.25);
}

}  // namespace
}  // namespace tokenbutler
