#include "engine/kernels/online_softmax.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

constexpr int kHeadDim = 5;

// A state with its accumulator, empty.
struct OwnedState {
  OwnedState() { state.Reset(kHeadDim); }
  OwnedState(const OwnedState&) = delete;
  std::vector<float> acc = std::vector<float>(kHeadDim, NAN);
  OnlineSoftmaxState state{.acc = acc.data()};
};

std::vector<float> Output(const OwnedState& s) {
  std::vector<float> out(kHeadDim);
  s.state.Finish(out.data(), kHeadDim);
  return out;
}

TEST(OnlineSoftmaxTest, EqualsSoftmaxWhateverTheOrder) {
  const int n = 40;
  const std::vector<float> logits = RandomFloats(n, 1, 10.0f);
  const std::vector<float> values = RandomFloats(size_t(n) * kHeadDim, 2);
  double sum = 0;
  std::vector<double> expected(kHeadDim, 0);
  for (int t = 0; t < n; ++t) {
    sum += std::exp(double{logits[t]});
    for (int d = 0; d < kHeadDim; ++d) {
      expected[d] += std::exp(double{logits[t]}) * values[t * kHeadDim + d];
    }
  }
  OwnedState forward, backward;
  for (int t = 0; t < n; ++t) {
    forward.state.Add(logits[t], &values[t * kHeadDim], kHeadDim);
    backward.state.Add(logits[n - 1 - t], &values[(n - 1 - t) * kHeadDim], kHeadDim);
  }
  for (int d = 0; d < kHeadDim; ++d) {
    EXPECT_NEAR(Output(forward)[d], expected[d] / sum, 1e-6);
    EXPECT_NEAR(Output(backward)[d], expected[d] / sum, 1e-6);
  }
  EXPECT_NEAR(forward.state.lse(), std::log(sum), 1e-5);
}

TEST(OnlineSoftmaxTest, MergedPartsEqualTheWhole) {
  const int n = 30;
  const std::vector<float> logits = RandomFloats(n, 1, 5.0f);
  const std::vector<float> values = RandomFloats(size_t(n) * kHeadDim, 2);
  OwnedState whole, left, right, empty;
  for (int t = 0; t < n; ++t) {
    whole.state.Add(logits[t], &values[t * kHeadDim], kHeadDim);
    (t < 11 ? left : right).state.Add(logits[t], &values[t * kHeadDim], kHeadDim);
  }
  left.state.Merge(empty.state, kHeadDim);
  empty.state.Merge(left.state, kHeadDim);
  empty.state.Merge(right.state, kHeadDim);
  for (int d = 0; d < kHeadDim; ++d) EXPECT_NEAR(Output(empty)[d], Output(whole)[d], 1e-6);
  EXPECT_NEAR(empty.state.lse(), whole.state.lse(), 1e-5);
}

TEST(OnlineSoftmaxTest, NothingSeenIsZeros) {
  OwnedState a, b;
  const std::vector<float> value(kHeadDim, 1.0f);
  a.state.Add(-INFINITY, value.data(), kHeadDim);
  a.state.Merge(b.state, kHeadDim);
  EXPECT_EQ(Output(a), std::vector<float>(kHeadDim, 0.0f));
  EXPECT_EQ(a.state.lse(), -INFINITY);
}

}  // namespace
}  // namespace tokenbutler
