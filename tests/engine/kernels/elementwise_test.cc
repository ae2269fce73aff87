// RMSNorm, SwiGLU, embedding, RoPE + append: vectorised against plain.

#include <cmath>
#include <cstring>
#include <vector>

#include "engine/kernels/embedding.h"
#include "engine/kernels/rms_norm.h"
#include "engine/kernels/rope_append.h"
#include "engine/kernels/swiglu.h"
#include "gtest/gtest.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

void ExpectClose(const std::vector<float>& actual, const std::vector<float>& expected,
                 float relative) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], relative * (std::abs(expected[i]) + 1e-3f)) << "at " << i;
  }
}

using ElementwiseTest = KernelTest;
INSTANTIATE_TEST_SUITE_P(Targets, ElementwiseTest, testing::ValuesIn(RunnableTargets()),
                         TargetTestName);

TEST_P(ElementwiseTest, RmsNormEqualsPlain) {
  for (const int n : {1, 5, 16, 33, 576, 1001}) {
    for (const float scale : {1e-4f, 1.0f, 1e4f}) {
      const int rows = 3;
      const std::vector<float> x = RandomFloats(size_t(rows) * n, 1, scale);
      const std::vector<float> weight = RandomFloats(n, 2);
      std::vector<float> out = x, plain = x;  // in place
      RmsNormParams params{.x = out.data(),
                           .weight = weight.data(),
                           .out = out.data(),
                           .eps = 1e-5f,
                           .num_rows = rows,
                           .hidden_size = n};
      RmsNorm(params);
      params.x = params.out = plain.data();
      RmsNormPlain({.x = plain.data(),
                    .weight = weight.data(),
                    .out = plain.data(),
                    .eps = 1e-5f,
                    .num_rows = rows,
                    .hidden_size = n});
      ExpectClose(out, plain, 2e-6f);
    }
  }
}

TEST_P(ElementwiseTest, AddRmsNormEqualsPlain) {
  for (const int n : {1, 7, 32, 576, 1001}) {
    const int rows = 2;
    const std::vector<float> x = RandomFloats(size_t(rows) * n, 1);
    const std::vector<float> weight = RandomFloats(n, 2);
    std::vector<float> residual = RandomFloats(size_t(rows) * n, 3), plain_residual = residual;
    std::vector<float> out(x.size()), plain_out(x.size());
    AddRmsNorm({.residual = residual.data(),
                .x = x.data(),
                .weight = weight.data(),
                .out = out.data(),
                .num_rows = rows,
                .hidden_size = n});
    AddRmsNormPlain({.residual = plain_residual.data(),
                     .x = x.data(),
                     .weight = weight.data(),
                     .out = plain_out.data(),
                     .num_rows = rows,
                     .hidden_size = n});
    EXPECT_EQ(residual, plain_residual);
    ExpectClose(out, plain_out, 2e-6f);
  }
}

TEST_P(ElementwiseTest, SwiGluEqualsPlain) {
  for (const int n : {1, 3, 16, 50, 1536}) {
    const int rows = 2;
    std::vector<float> gate_up = RandomFloats(size_t(rows) * 2 * n, 1, 8.0f);
    gate_up[0] = -200.0f;  // exp(200) is infinite in float32
    if (n > 2) gate_up[1] = 200.0f, gate_up[2] = 0.0f;
    std::vector<float> out(size_t(rows) * n), plain(out.size());
    SwiGlu(
        {.gate_up = gate_up.data(), .out = out.data(), .num_rows = rows, .intermediate_size = n});
    SwiGluPlain(
        {.gate_up = gate_up.data(), .out = plain.data(), .num_rows = rows, .intermediate_size = n});
    ExpectClose(out, plain, 2e-6f);
  }
}

TEST(EmbeddingTest, GathersRowsOfEveryType) {
  const int vocab = 11, hidden = 21;
  const std::vector<float> table = RandomFloats(size_t(vocab) * hidden, 1);
  const std::vector<int32_t> ids = {10, 0, 3, 3};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::vector<std::byte> stored = Narrow(table, dtype);
    std::vector<float> out(ids.size() * hidden);
    Embedding({.table = stored.data(),
               .table_dtype = dtype,
               .token_ids = ids.data(),
               .out = out.data(),
               .num_rows = 4,
               .hidden_size = hidden});
    for (size_t r = 0; r < ids.size(); ++r) {
      for (int i = 0; i < hidden; ++i) {
        EXPECT_EQ(out[r * hidden + i],
                  LoadElement(stored.data(), dtype, size_t(ids[r]) * hidden + i));
      }
    }
  }
}

// Two tokens of one step: their q, k, v rows and two blocks of cache to append to.
struct RopeCase {
  RopeCase(int head_dim, DType dtype)
      : layout{.num_layers = 2,
               .num_kv_heads = 2,
               .head_dim = head_dim,
               .block_size = 4,
               .dtype = dtype},
        qkv(RandomFloats(size_t(2) * (num_heads + 4) * head_dim, 1)),
        cos(head_dim),
        sin(head_dim),
        blocks(2 * layout.block_bytes(), std::byte{0x5a}) {
    for (int i = 0; i < head_dim; ++i) {  // [2][head_dim / 2]
      cos[i] = std::cos(0.37f * static_cast<float>(i));
      sin[i] = std::sin(0.37f * static_cast<float>(i));
    }
    for (int r = 0; r < 2; ++r) {
      rows[r] = {.cos = cos.data() + r * head_dim / 2,
                 .sin = sin.data() + r * head_dim / 2,
                 .block = blocks.data() + r * layout.block_bytes(),
                 .row_in_block = 1 + 2 * r};
    }
    params = {.rows = rows,
              .qkv = qkv.data(),
              .num_rows = 2,
              .num_heads = num_heads,
              .layout = layout,
              .layer = 1};
  }
  RopeCase(const RopeCase&) = delete;

  static constexpr int num_heads = 6;
  KvLayout layout;
  std::vector<float> qkv, cos, sin;
  std::vector<std::byte> blocks;
  RopeAppendParams::Row rows[2];
  RopeAppendParams params;
};

TEST_P(ElementwiseTest, RopeAppendEqualsPlain) {
  for (const DType dtype : kKvDTypes) {
    for (const int head_dim : {2, 6, 64, 80, 128}) {
      RopeCase fast(head_dim, dtype), plain(head_dim, dtype);
      RopeAppend(fast.params);
      RopeAppendPlain(plain.params);
      for (size_t i = 0; i < fast.qkv.size(); ++i) {
        ASSERT_NEAR(fast.qkv[i], plain.qkv[i], 1e-6f) << "at " << i;
      }
      // The cache holds what the fast version rotated, rounded, and nothing else changed.
      std::vector<std::byte> expected(fast.blocks.size(), std::byte{0x5a});
      for (int r = 0; r < 2; ++r) {
        const float* k = fast.qkv.data() + size_t(r) * (RopeCase::num_heads + 4) * head_dim +
                         size_t(RopeCase::num_heads) * head_dim;
        for (int h = 0; h < 2; ++h) {
          std::byte* block = expected.data() + r * fast.layout.block_bytes();
          StoreKvRowPlain(k + h * head_dim, k + (2 + h) * head_dim, fast.layout,
                          KvRowPlaceOf(fast.layout, block, 1, h, 1 + 2 * r));
        }
      }
      EXPECT_TRUE(fast.blocks == expected) << DTypeName(dtype) << " head_dim " << head_dim;
    }
  }
}

TEST(RopeTest, PairsElementsHalfAHeadApart) {
  RopeCase c(2, DType::kF32);
  c.qkv[0] = 1, c.qkv[1] = 0;
  RopeAppendPlain(c.params);
  EXPECT_FLOAT_EQ(c.qkv[0], c.cos[0]);
  EXPECT_FLOAT_EQ(c.qkv[1], c.sin[0]);
}

}  // namespace
}  // namespace tokenbutler
