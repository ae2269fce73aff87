#include "engine/kernels/softmax_block.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Blocks of logits for a few rows, run one after the other.
struct Rows {
  Rows(int num_rows, int num_keys, int head_dim, DType weights_dtype)
      : acc(static_cast<size_t>(num_rows) * head_dim), states(num_rows) {
    params = {.weights_dtype = weights_dtype,
              .num_rows = num_rows,
              .num_keys = num_keys,
              .softmax_scale = 0.125f,
              .states = states.data(),
              .head_dim = head_dim};
    for (int r = 0; r < num_rows; ++r) {
      states[r].acc = acc.data() + static_cast<size_t>(r) * head_dim;
      states[r].Reset(head_dim);
    }
  }

  // Returns the weights, widened. In place of the logits where they are float32.
  template <typename Fn>
  std::vector<float> Step(const Fn& softmax_block, std::vector<float> logits,
                          const std::vector<VisibleKeys>& visible) {
    std::vector<BF16> rounded(logits.size(), ToBF16(-1));
    params.logits = logits.data();
    params.visible = visible.data();
    const bool in_place = params.weights_dtype == DType::kF32;
    params.weights = in_place ? static_cast<void*>(logits.data()) : rounded.data();
    softmax_block(params);
    for (size_t i = 0; !in_place && i < logits.size(); ++i) logits[i] = ToFloat(rounded[i]);
    return logits;
  }

  std::vector<float> acc;  // [num_rows, head_dim]
  std::vector<OnlineSoftmaxState> states;
  SoftmaxBlockParams params;
};

// Each kind of row: all keys, none, one at either end, ends inside of vectors, whole vectors.
std::vector<VisibleKeys> VisibleKinds(int num_keys) {
  return {{0, num_keys}, {0, 0},  {0, -3}, {num_keys + 4, num_keys},
          {0, 1},        {1, 2},  {3, 16}, {num_keys - 1, num_keys},
          {5, 9},        {7, 13}, {0, 16}, {num_keys - 16, num_keys}};
}

using SoftmaxBlockTest = KernelTest;
INSTANTIATE_TEST_SUITE_P(Targets, SoftmaxBlockTest, testing::ValuesIn(RunnableTargets()),
                         TargetTestName);

TEST_P(SoftmaxBlockTest, EqualsPlain) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int num_keys : {16, 48, 256}) {
      for (const int head_dim : {5, 64, 80}) {
        SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " weights, keys " << num_keys
                                        << " head_dim " << head_dim);
        const std::vector<VisibleKeys> kinds = VisibleKinds(num_keys);
        const int num_rows = static_cast<int>(kinds.size());
        Rows fast(num_rows, num_keys, head_dim, dtype), plain(num_rows, num_keys, head_dim, dtype);
        for (int block = 0; block < 4; ++block) {
          // Each row is in turn every kind of row; logits grow, so that old sums are scaled down.
          std::vector<VisibleKeys> visible;
          for (int r = 0; r < num_rows; ++r) visible.push_back(kinds[(r + 5 * block) % num_rows]);
          std::vector<float> logits =
              RandomFloats(size_t(num_rows) * num_keys, 7 + block, 20.0f * (1 + block % 3));
          // What is not visible may be anything.
          for (int r = 0; r < num_rows; ++r) {
            for (int k = 0; k < num_keys; ++k) {
              const bool seen = visible[r].begin <= k && k < visible[r].end;
              if (!seen) logits[r * num_keys + k] = k % 2 == 0 ? NAN : kInfinity;
            }
          }
          const auto weights = fast.Step(SoftmaxBlock, logits, visible);
          const auto expected = plain.Step(SoftmaxBlockPlain, logits, visible);
          const float tolerance = dtype == DType::kF32 ? 4e-6f : 1.0f / 128;  // one bit of bf16
          for (size_t i = 0; i < weights.size(); ++i) {
            ASSERT_NEAR(weights[i], expected[i], tolerance * expected[i] + 1e-35f) << i;
          }
          for (int r = 0; r < num_rows; ++r) {
            ASSERT_EQ(fast.states[r].max, plain.states[r].max) << "row " << r;
            ASSERT_NEAR(fast.states[r].sum, plain.states[r].sum,
                        1e-3f * plain.states[r].sum + 1e-35f);
          }
          for (size_t i = 0; i < fast.acc.size(); ++i) {
            ASSERT_NEAR(fast.acc[i], plain.acc[i], 1e-5f * std::abs(plain.acc[i]) + 1e-30f) << i;
          }
          // What the caller would add.
          const std::vector<float> values = RandomFloats(fast.acc.size(), 70 + block);
          for (size_t i = 0; i < values.size(); ++i) {
            const bool seen = visible[i / head_dim].begin < visible[i / head_dim].end;
            fast.acc[i] += seen ? values[i] : 0;
            plain.acc[i] = fast.acc[i];
          }
        }
      }
    }
  }
}

TEST_P(SoftmaxBlockTest, WeightsOfKeysThatAreNotVisibleAreZero) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::vector<VisibleKeys> visible = VisibleKinds(32);
    const int num_rows = static_cast<int>(visible.size());
    Rows rows(num_rows, 32, 8, dtype);
    const auto weights = rows.Step(SoftmaxBlock, std::vector<float>(num_rows * 32, 3.0f), visible);
    for (int r = 0; r < num_rows; ++r) {
      for (int k = 0; k < 32; ++k) {
        const bool seen = visible[r].begin <= k && k < visible[r].end;
        ASSERT_EQ(weights[r * 32 + k], seen ? 1.0f : 0.0f) << "row " << r << " key " << k;
      }
      const int count = std::max(visible[r].end - visible[r].begin, 0);
      EXPECT_EQ(rows.states[r].sum, count) << "row " << r;
    }
  }
}

// So that bf16 weights still add up to 1 with what they are divided by.
TEST_P(SoftmaxBlockTest, SumsTheWeightsAsTheyAreStored) {
  Rows rows(1, 256, 8, DType::kBF16);
  const auto weights = rows.Step(SoftmaxBlock, RandomFloats(256, 3, 10.0f), {{0, 256}});
  double sum = 0;
  for (const float w : weights) sum += w;
  EXPECT_NEAR(rows.states[0].sum, sum, 1e-6 * sum);
}

// A model that computes NaN must not answer as if nothing was.
TEST_P(SoftmaxBlockTest, NaNIsNotLost) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Rows rows(3, 64, 8, dtype);
    std::vector<float> logits = RandomFloats(3 * 64, 3, 10.0f);
    logits[64 + 37] = NAN;
    logits[2 * 64 + 5] = kInfinity;
    const auto weights = rows.Step(SoftmaxBlock, logits, {{0, 64}, {0, 64}, {0, 64}});
    EXPECT_TRUE(std::isfinite(rows.states[0].sum));
    EXPECT_TRUE(std::isnan(weights[64 + 37]));
    EXPECT_TRUE(std::isnan(rows.states[1].sum));
    EXPECT_TRUE(std::isnan(rows.states[2].sum)) << "infinity minus infinity";
  }
}

TEST_P(SoftmaxBlockTest, RowsDoNotDependOnOneAnother) {
  const std::vector<VisibleKeys> kinds = VisibleKinds(64);
  const int num_rows = static_cast<int>(kinds.size());
  const std::vector<float> logits = RandomFloats(num_rows * 64, 11, 15.0f);
  Rows together(num_rows, 64, 16, DType::kBF16);
  const auto weights = together.Step(SoftmaxBlock, logits, kinds);
  for (int r = 0; r < num_rows; ++r) {
    Rows alone(1, 64, 16, DType::kBF16);
    const std::vector<float> row(logits.begin() + r * 64, logits.begin() + (r + 1) * 64);
    const auto same = alone.Step(SoftmaxBlock, row, {kinds[r]});
    for (int k = 0; k < 64; ++k) ASSERT_EQ(same[k], weights[r * 64 + k]) << "row " << r;
    EXPECT_EQ(alone.states[0].sum, together.states[r].sum);
  }
}

}  // namespace
}  // namespace tokenbutler
