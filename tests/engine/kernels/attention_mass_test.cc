#include "engine/kernels/attention_mass.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

// Random keys in blocks that lie in reverse order, and queries of the last rows.
struct MassCase {
  MassCase(DType dtype, int head_dim, int group_size, int first_position, int num_rows,
           int block_size = 48) {
    params.layout = {.num_layers = 2,
                     .num_kv_heads = 2,
                     .head_dim = head_dim,
                     .block_size = block_size,
                     .dtype = dtype};
    params.layer = 1;
    params.kv_head = 1;
    params.softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    params.group_size = group_size;
    params.first_position = first_position;
    params.num_rows = num_rows;
    params.stride = static_cast<size_t>(group_size) * head_dim + 5;
    const int num_tokens = first_position + num_rows;
    const int num_blocks = params.layout.blocks_for(num_tokens);
    const size_t block_bytes = params.layout.block_bytes();
    cache = RandomCache(params.layout, num_blocks, 1);
    for (int b = 0; b < num_blocks; ++b) {
      blocks.push_back(cache.data() + (num_blocks - 1 - b) * block_bytes);
    }
    queries = RandomFloats(params.stride * num_rows, 2, 1.5f);
    mass = RandomFloats(static_cast<size_t>(num_tokens), 3);
    lse.resize(static_cast<size_t>(num_rows) * group_size);
    params.blocks = blocks.data();
    params.queries = queries.data();
    params.mass = mass.data();
    params.lse = lse.data();
  }

  AttentionMassParams params;
  std::vector<std::byte> cache;
  std::vector<const std::byte*> blocks;
  std::vector<float> queries, mass, lse;
};

using AttentionMassTest = KernelTest;
INSTANTIATE_TEST_SUITE_P(Targets, AttentionMassTest, testing::ValuesIn(RunnableTargets()),
                         TargetTestName);

TEST_P(AttentionMassTest, EqualsPlain) {
  ComputePool pool(2);
  for (const DType dtype : kKvDTypes) {
    for (const int head_dim : {5, 64, 80}) {
      for (const int group_size : {1, 3, 7}) {
        for (const auto& [first, rows] : {std::pair{0, 1}, {0, 70}, {63, 2}, {600, 13}}) {
          SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " head_dim " << head_dim
                                          << " group " << group_size << " first " << first);
          MassCase fast(dtype, head_dim, group_size, first, rows);
          MassCase plain(dtype, head_dim, group_size, first, rows);
          AttentionMass(fast.params, pool);
          AttentionMassPlain(plain.params);
          for (size_t t = 0; t < plain.mass.size(); ++t) {
            ASSERT_NEAR(fast.mass[t], plain.mass[t], 2e-5f * (1 + std::abs(plain.mass[t])))
                << "token " << t;
          }
          for (size_t i = 0; i < plain.lse.size(); ++i) {
            ASSERT_NEAR(fast.lse[i], plain.lse[i], 1e-5f * (1 + std::abs(plain.lse[i])));
          }
        }
      }
    }
  }
}

TEST_P(AttentionMassTest, DoesNotDependOnThreadsNorOnTheDivisionIntoCalls) {
  constexpr int kFirst = 530, kRows = 19;
  MassCase whole(DType::kBF16, 64, 3, kFirst, kRows);
  ComputePool one(1);
  AttentionMass(whole.params, one);
  for (const int chunk : {1, 4, 19}) {
    MassCase pieces(DType::kBF16, 64, 3, kFirst, kRows);
    ComputePool three(3);
    for (int row = 0; row < kRows; row += chunk) {
      AttentionMassParams piece = pieces.params;
      piece.first_position += row;
      piece.num_rows = std::min(chunk, kRows - row);
      piece.queries += row * piece.stride;
      piece.lse += row * piece.group_size;
      AttentionMass(piece, three);
    }
    EXPECT_EQ(pieces.mass, whole.mass);
    EXPECT_EQ(pieces.lse, whole.lse);
  }
}

// Weights of one query add up to 1, however large its logits are.
TEST_P(AttentionMassTest, EachQueryAddsOne) {
  MassCase c(DType::kBF16, 64, 2, 200, 3);
  for (float& q : c.queries) q *= 40;
  std::fill(c.mass.begin(), c.mass.end(), 0.0f);
  ComputePool pool(2);
  AttentionMass(c.params, pool);
  double sum = 0;
  for (const float m : c.mass) sum += m;
  EXPECT_NEAR(sum, 6, 1e-3);
}

}  // namespace
}  // namespace tokenbutler
