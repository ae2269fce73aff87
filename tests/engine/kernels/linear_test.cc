#include "engine/kernels/linear.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

struct DTypes {
  DType x, weight;
};
constexpr DTypes kDTypes[] = {
    {DType::kF32, DType::kF32}, {DType::kF32, DType::kBF16}, {DType::kBF16, DType::kBF16}};

struct Shape {
  int num_rows, in_features, out_features;
};

// Owns what a LinearParams points to.
struct LinearCase {
  LinearCase(Shape shape, DTypes dtypes, bool with_bias)
      : x(Narrow(RandomFloats(size_t(shape.num_rows) * shape.in_features, 1), dtypes.x)),
        weight(
            Narrow(RandomFloats(size_t(shape.out_features) * shape.in_features, 2), dtypes.weight)),
        bias(RandomFloats(shape.out_features, 3)),
        y(size_t(shape.num_rows) * shape.out_features, NAN) {
    params = {.x = x.data(),
              .x_dtype = dtypes.x,
              .weight = weight.data(),
              .weight_dtype = dtypes.weight,
              .bias = with_bias ? bias.data() : nullptr,
              .y = y.data(),
              .num_rows = shape.num_rows,
              .in_features = shape.in_features,
              .out_features = shape.out_features};
  }

  std::vector<float> Run(ComputePool& pool) {
    Linear(params, pool);
    return y;
  }

  std::vector<std::byte> x, weight;
  std::vector<float> bias, y;
  LinearParams params;
};

// Of a sum of products of standard normals. Its rounding errors grow with the number of terms in
// one lane's sum; the portable version may have a single lane.
float Tolerance(int in_features) {
  const float n = static_cast<float>(in_features);
  return 1e-6f + (KernelTarget() == CpuTarget::kPortable ? 4e-7f * n : 5e-6f * std::sqrt(n));
}

using LinearTest = KernelTest;
INSTANTIATE_TEST_SUITE_P(Targets, LinearTest, testing::ValuesIn(RunnableTargets()), TargetTestName);

TEST_P(LinearTest, EqualsPlain) {
  ComputePool pool(2);
  for (const Shape shape :
       {Shape{1, 1, 1}, Shape{1, 7, 5}, Shape{2, 16, 4}, Shape{3, 31, 17}, Shape{4, 33, 2},
        Shape{5, 64, 33}, Shape{7, 100, 3}, Shape{16, 576, 192}, Shape{17, 129, 66},
        Shape{1, 1536, 576}, Shape{33, 40, 20}, Shape{9, 1025, 18}, Shape{35, 2048, 16},
        Shape{4, 1024, 35}, Shape{40, 1607, 33}}) {
    for (const DTypes dtypes : kDTypes) {
      for (const bool with_bias : {false, true}) {
        SCOPED_TRACE(testing::Message() << shape.num_rows << "x" << shape.in_features << "x"
                                        << shape.out_features << " " << DTypeName(dtypes.x) << "/"
                                        << DTypeName(dtypes.weight) << (with_bias ? " bias" : ""));
        LinearCase c(shape, dtypes, with_bias);
        const std::vector<float> y = c.Run(pool);
        LinearPlain(c.params);
        const float tolerance = Tolerance(shape.in_features);
        for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], c.y[i], tolerance) << "at " << i;
      }
    }
  }
}

TEST_P(LinearTest, RowsDoNotDependOnTheirNumberNorOnThreads) {
  // Short ones and long ones, which kernels may cut.
  for (const Shape shape : {Shape{19, 203, 150}, Shape{35, 1100, 21}}) {
    for (const DTypes dtypes : kDTypes) {
      LinearCase all(shape, dtypes, true);
      ComputePool one_thread(1);
      const std::vector<float> expected = all.Run(one_thread);
      for (const int num_threads : {1, 2, 3}) {
        ComputePool pool(num_threads);
        for (int num_rows = 1; num_rows <= shape.num_rows; ++num_rows) {
          // The last `num_rows` rows: every row in every place of a tile.
          const int first = shape.num_rows - num_rows;
          LinearCase some(shape, dtypes, true);
          some.params.num_rows = num_rows;
          some.params.x = some.x.data() + size_t(first) * shape.in_features * DTypeBytes(dtypes.x);
          const std::vector<float> y = some.Run(pool);
          ASSERT_EQ(std::memcmp(y.data(), expected.data() + size_t(first) * shape.out_features,
                                size_t(num_rows) * shape.out_features * sizeof(float)),
                    0)
              << num_rows << " rows, " << num_threads << " threads, " << DTypeName(dtypes.x);
        }
      }
    }
  }
}

TEST_P(LinearTest, WritesNothingBeyondItsRows) {
  ComputePool pool(2);
  for (const DTypes dtypes : kDTypes) {
    LinearCase c({4, 50, 37}, dtypes, false);
    c.params.num_rows = 3;
    const std::vector<float> y = c.Run(pool);
    for (size_t i = 0; i < 3 * 37; ++i) ASSERT_FALSE(std::isnan(y[i]));
    for (size_t i = 3 * 37; i < y.size(); ++i) ASSERT_TRUE(std::isnan(y[i]));
    c.params.num_rows = 0;
    c.Run(pool);
  }
}

TEST_P(LinearTest, LongRowsStayAccurate) {
  ComputePool pool(1);
  LinearCase c({1, 14336, 8}, {DType::kF32, DType::kBF16}, false);
  const std::vector<float> y = c.Run(pool);
  LinearPlain(c.params);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], c.y[i], Tolerance(14336));
}

TEST_P(LinearTest, RoundToBf16IsExact) {
  std::vector<float> x = RandomFloats(1000, 4, 1e3f);
  for (const float special :
       {0.0f, -0.0f, 1.00390625f, 1.01171875f, std::numeric_limits<float>::denorm_min(),
        std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
        // NaNs that rounding as if they were numbers would make infinite, or 0.
        std::bit_cast<float>(0x7f800001u), std::bit_cast<float>(0x7fffffffu),
        std::bit_cast<float>(0xffffffffu), std::bit_cast<float>(0xff800001u)}) {
    x.push_back(special);              // of the last elements, which fill no vector,
    x.insert(x.begin(), 16, special);  // and of whole vectors
  }
  std::vector<BF16> fast(x.size()), plain(x.size());
  RoundToBf16(x.data(), static_cast<int>(x.size()), fast.data());
  RoundToBf16Plain(x.data(), static_cast<int>(x.size()), plain.data());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(fast[i].bits, plain[i].bits) << x[i];
}

}  // namespace
}  // namespace tokenbutler
