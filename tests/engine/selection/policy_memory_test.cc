// What policies say they keep outside of blocks, against the heap.

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/selection/policies.h"
#include "gtest/gtest.h"
#include "tests/engine/selection/selection_fixture.h"
#include "tests/testing/live_heap.h"

namespace tokenbutler {
namespace {

class PolicyMemoryTest : public ::testing::TestWithParam<AttentionPolicy> {};

// Vectors per layer and head, and what does not grow with the tokens.
constexpr int64_t kOverhead = 64 << 10;

TEST_P(PolicyMemoryTest, IsBoundedWithAndWithoutForks) {
  constexpr int kPrompt = 3000, kSteps = 40;
  AttentionParams params = DefaultParams(GetParam());
  params.token_budget = 300;
  params.sink_tokens = std::min(params.sink_tokens, 16);
  params.local_window = std::min(params.local_window, 64);
  FakeSequence sequence({}, params, kPrompt + kSteps);
  const PolicyMemory memory = PolicyMemoryFor(params, sequence.resources(), kPrompt + kSteps);
  ASSERT_GT(memory.own, 0);
  // The fixture's own memory has grown to its full size before.
  FakeSequence rehearsal({}, params, kPrompt + kSteps);
  rehearsal.Prefill(nullptr, kPrompt, 512);
  sequence.Prefill(nullptr, 1);

  const int64_t before = LiveHeapBytes();
  const std::unique_ptr<TokenSelector> selector = sequence.NewSelector();
  int64_t most = 0;
  for (int at = 1; at < kPrompt; at += 512) {
    sequence.Prefill(selector.get(), std::min(512, kPrompt - at), 512);
    most = std::max(most, LiveHeapBytes() - before);
  }
  const std::unique_ptr<TokenSelector> fork = selector->Clone();
  for (int i = 0; i < kSteps; ++i) sequence.Decode(selector.get());
  const int64_t one = LiveHeapBytes() - before;
  EXPECT_LE(std::max(most, one), memory.own * 2 + memory.shared + kOverhead);
  EXPECT_GE(std::max(most, one), (memory.own + memory.shared) / 4) << "it says far too much";

  TokenSelection selection;
  for (int layer = 0; layer < sequence.shape().num_layers; ++layer) {
    const LayerContext context = sequence.Context(layer, kPrompt + 1);
    if (fork->StandIn(context).empty()) {
      fork->Select(context, sequence.Query(layer, kPrompt), &selection);
    }
  }
  EXPECT_LE(LiveHeapBytes() - before, memory.own * 2 + memory.shared + kOverhead)
      << "what is shared must not be made twice";
}

INSTANTIATE_TEST_SUITE_P(Policies, PolicyMemoryTest,
                         ::testing::Values(AttentionPolicy::kH2o, AttentionPolicy::kSnapKv,
                                           AttentionPolicy::kXkv, AttentionPolicy::kSketch,
                                           AttentionPolicy::kPca, AttentionPolicy::kExact,
                                           AttentionPolicy::kRandom),
                         [](const auto& info) { return std::string(PolicyName(info.param)); });

}  // namespace
}  // namespace tokenbutler
