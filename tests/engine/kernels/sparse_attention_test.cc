#include "engine/kernels/sparse_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "engine/kernels/decode_attention.h"
#include "gtest/gtest.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

struct Shape {
  int head_dim = 64, group_size = 3, num_kv_heads = 2, block_size = 128;
  DType dtype = DType::kBF16;
};

struct AlignedFree {
  void operator()(float* p) const { std::free(p); }
};

// A cache of random rows and queries that attend to random lists of them. Blocks lie in
// reverse order, so that a kernel that ignores the block table fails.
class SparseCase {
 public:
  // Query i has lists of about lens[i] rows, a few fewer for each further KV head (at least one).
  SparseCase(Shape shape, const std::vector<int>& lens, float query_scale = 1.0f) {
    params.layout = {.num_layers = 2,
                     .num_kv_heads = shape.num_kv_heads,
                     .head_dim = shape.head_dim,
                     .block_size = shape.block_size,
                     .dtype = shape.dtype};
    params.layer = 1;
    params.num_heads = shape.group_size * shape.num_kv_heads;
    params.softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    const int num_cached = *std::max_element(lens.begin(), lens.end()) * 3 / 2 + 50;
    const int num_blocks = params.layout.blocks_for(num_cached);
    const size_t block_bytes = params.layout.block_bytes();
    cache = RandomCache(params.layout, num_blocks, 1);
    for (int b = 0; b < num_blocks; ++b) {
      blocks.push_back(cache.data() + (num_blocks - 1 - b) * block_bytes);
    }
    const size_t query_size = size_t(params.num_heads) * shape.head_dim;
    query_ = RandomFloats(lens.size() * query_size, 2, query_scale);
    first_query_ = RandomFloats(lens.size() * query_size, 3, query_scale);
    out.resize(query_.size(), NAN);
    lse.resize(lens.size() * params.num_heads, NAN);
    std::mt19937 random(4);
    std::vector<int32_t> all(num_cached);
    std::iota(all.begin(), all.end(), 0);
    for (const int len : lens) {
      for (int j = 0; j < shape.num_kv_heads; ++j) {
        std::vector<int32_t>& list = lists.emplace_back();
        std::sample(all.begin(), all.end(), std::back_inserter(list), std::max(1, len - 3 * j),
                    random);
      }
    }
    for (const auto& list : lists) {
      rows.push_back(list.data());
      num_rows.push_back(static_cast<int32_t>(list.size()));
      for (int h = 0; h < shape.group_size; ++h) weights.emplace_back(list.size(), NAN);
    }
    for (auto& w : weights) weight_arrays.push_back(w.data());
    for (size_t i = 0; i < lens.size(); ++i) {
      queries.push_back({.query = query_.data() + i * query_size,
                         .blocks = blocks.data(),
                         .rows = &rows[i * shape.num_kv_heads],
                         .num_rows = &num_rows[i * shape.num_kv_heads],
                         .out = out.data() + i * query_size,
                         .lse = lse.data() + i * params.num_heads});
    }
    params.queries = queries;
    const size_t floats = SparseAttentionWorkspaceFloats(static_cast<int>(queries.size()),
                                                         params.num_heads, shape.head_dim);
    const size_t bytes = (floats * sizeof(float) + 63) / 64 * 64;
    workspace_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    params.workspace = workspace_.get();
  }

  // Asks for the weights of every query.
  void WantWeights() {
    for (size_t i = 0; i < queries.size(); ++i) {
      queries[i].weights = &weight_arrays[i * params.num_heads];
    }
  }
  // Scores the first `num_rows` of every list with other queries.
  void UseFirstQuery(int num_rows) {
    const size_t query_size = size_t(params.num_heads) * params.layout.head_dim;
    for (size_t i = 0; i < queries.size(); ++i) {
      queries[i].first_query = first_query_.data() + i * query_size;
      queries[i].num_first_rows = num_rows;
    }
  }

  SparseAttentionParams params;
  std::vector<SparseAttentionParams::Query> queries;
  std::vector<std::byte> cache;
  std::vector<const std::byte*> blocks;
  std::vector<std::vector<int32_t>> lists;  // [query][kv_head]
  std::vector<const int32_t*> rows;
  std::vector<int32_t> num_rows;
  std::vector<float> out, lse;
  std::vector<std::vector<float>> weights;  // [query][head][row]
  std::vector<float*> weight_arrays;

 private:
  std::vector<float> query_, first_query_;
  std::unique_ptr<float, AlignedFree> workspace_;
};

// Copies one token's rows of layer 1, and their scales.
void CopyRows(const KvLayout& kv, int kv_head, const std::byte* from, int from_row, std::byte* to,
              int to_row) {
  const KvRowPlace place = KvRowPlaceOf(kv, to, 1, kv_head, to_row);
  const KvRows key = KeyRowsOf(kv, from, 1, kv_head, from_row);
  std::memcpy(place.key, key.data, kv.row_bytes());
  std::memcpy(place.value, ValueRowsOf(kv, from, 1, kv_head, from_row).data, kv.row_bytes());
  if (kv.has_scales()) std::copy_n(key.scales, 2, place.scales);
}

void ExpectEqualsPlain(SparseCase& c, float tolerance) {
  ComputePool pool(2);
  SparseAttention(c.params, pool);
  const std::vector<float> out = c.out, lse = c.lse;
  const std::vector<std::vector<float>> weights = c.weights;
  SparseAttentionPlain(c.params);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], c.out[i], tolerance) << "at " << i;
  for (size_t i = 0; i < lse.size(); ++i) {
    ASSERT_NEAR(lse[i], c.lse[i], tolerance * (1 + std::abs(c.lse[i]))) << "head " << i;
  }
  if (c.queries[0].weights == nullptr) return;
  for (size_t h = 0; h < weights.size(); ++h) {
    double sum = 0;
    for (size_t i = 0; i < weights[h].size(); ++i) {
      ASSERT_NEAR(weights[h][i], c.weights[h][i], tolerance) << "head " << h << " row " << i;
      sum += weights[h][i];
    }
    ASSERT_NEAR(sum, 1.0, 1e-5) << "head " << h;
  }
}

using SparseAttentionTest = KernelTest;
INSTANTIATE_TEST_SUITE_P(Targets, SparseAttentionTest, testing::ValuesIn(RunnableTargets()),
                         TargetTestName);

TEST_P(SparseAttentionTest, EqualsPlainForEveryHeadAndType) {
  for (const DType dtype : kKvDTypes) {
    for (const int head_dim : {5, 32, 64, 72, 80, 96, 128, 256}) {
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " head_dim " << head_dim);
      SparseCase c({.head_dim = head_dim, .dtype = dtype}, {1, 65, 300});
      c.WantWeights();
      ExpectEqualsPlain(c, 3e-6f);
    }
  }
}

TEST_P(SparseAttentionTest, EqualsPlainForEveryGroup) {
  for (const int group_size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 17}) {
    SCOPED_TRACE(testing::Message() << "group " << group_size);
    SparseCase c({.head_dim = 72, .group_size = group_size}, {130, 17});
    c.WantWeights();
    ExpectEqualsPlain(c, 3e-6f);
  }
}

TEST_P(SparseAttentionTest, EqualsPlainForEveryLengthAndBlock) {
  for (const int block_size : {16, 48, 128}) {
    SCOPED_TRACE(testing::Message() << "block_size " << block_size);
    SparseCase c({.head_dim = 16, .block_size = block_size},
                 {1, 2, 4, 15, 16, 17, 31, 33, 63, 64, 65, 127, 257, 1025, 4200});
    c.WantWeights();
    ExpectEqualsPlain(c, 3e-6f);
  }
}

TEST_P(SparseAttentionTest, FirstRowsHaveTheirOwnQuery) {
  for (const int num_first : {0, 1, 4, 63, 64, 65, 300, 2000}) {
    SCOPED_TRACE(testing::Message() << "num_first_rows " << num_first);
    SparseCase c({}, {1, 5, 64, 70, 900});
    c.WantWeights();
    c.UseFirstQuery(num_first);
    ExpectEqualsPlain(c, 3e-6f);
  }
}

// Queries so large that nearly all of the weight falls on one token and exponentials underflow.
TEST_P(SparseAttentionTest, ExtremeLogits) {
  SparseCase c({}, {200, 3, 1000}, 200.0f);
  c.WantWeights();
  ExpectEqualsPlain(c, 1e-4f);
}

TEST_P(SparseAttentionTest, ResultDependsNeitherOnNeighboursNorOnThreads) {
  const std::vector<int> lens = {5, 900, 64, 4097, 1};
  SparseCase all({.head_dim = 24}, lens);
  all.WantWeights();
  all.UseFirstQuery(4);
  ComputePool one_thread(1);
  SparseAttention(all.params, one_thread);
  const std::vector<float> expected = all.out, expected_lse = all.lse;
  const std::vector<std::vector<float>> expected_weights = all.weights;
  for (const int num_threads : {2, 4}) {
    ComputePool pool(num_threads);
    SparseAttention(all.params, pool);
    ASSERT_EQ(all.out, expected);
    ASSERT_EQ(all.lse, expected_lse);
    ASSERT_EQ(all.weights, expected_weights);
    for (size_t i = 0; i < lens.size(); ++i) {
      SparseCase alone({.head_dim = 24}, lens);
      alone.UseFirstQuery(4);
      alone.params.queries = absl::MakeConstSpan(alone.queries).subspan(i, 1);
      SparseAttention(alone.params, pool);
      const size_t size = expected.size() / lens.size();
      ASSERT_EQ(std::memcmp(alone.out.data() + i * size, expected.data() + i * size,
                            size * sizeof(float)),
                0)
          << "length " << lens[i] << ", " << num_threads << " threads";
    }
  }
}

// The device tier: the chosen rows side by side in other blocks, as slots 7, 9, 11, ...
TEST_P(SparseAttentionTest, ResultDoesNotDependOnWhereRowsLie) {
  for (const auto& [len, dtype] : {std::pair{1, DType::kBF16},
                                   {64, DType::kI8},
                                   {333, DType::kBF16},
                                   {3000, DType::kI8},
                                   {3000, DType::kF16}}) {
    SCOPED_TRACE(testing::Message() << "length " << len << " " << DTypeName(dtype));
    SparseCase c({.head_dim = 40, .dtype = dtype}, {len});
    ComputePool pool(2);
    SparseAttention(c.params, pool);
    const std::vector<float> expected = c.out, expected_lse = c.lse;

    const KvLayout& kv = c.params.layout;
    const int num_slots = 7 + 2 * len;
    std::vector<std::byte> tier(kv.blocks_for(num_slots) * kv.block_bytes());
    std::vector<const std::byte*> tier_blocks;
    for (int b = 0; b < kv.blocks_for(num_slots); ++b) {
      tier_blocks.push_back(tier.data() + b * kv.block_bytes());
    }
    for (int j = 0; j < kv.num_kv_heads; ++j) {
      for (size_t i = 0; i < c.lists[j].size(); ++i) {
        const int row = c.lists[j][i];
        const int slot = 7 + 2 * static_cast<int>(i);
        CopyRows(kv, j, c.blocks[row / kv.block_size], row % kv.block_size,
                 tier.data() + (slot / kv.block_size) * kv.block_bytes(), slot % kv.block_size);
        c.lists[j][i] = slot;
      }
    }
    c.queries[0].blocks = tier_blocks.data();
    SparseAttention(c.params, pool);
    ASSERT_EQ(c.out, expected);
    ASSERT_EQ(c.lse, expected_lse);
  }
}

TEST_P(SparseAttentionTest, AllRowsGiveTheBitsOfDenseAttention) {
  for (const int len : {1, 63, 64, 129, 1000, 5000}) {
    for (const DType dtype : kKvDTypes) {
      SCOPED_TRACE(testing::Message() << "length " << len);
      SparseCase c({.head_dim = 64, .group_size = 7, .dtype = dtype}, {len});
      for (int j = 0; j < c.params.layout.num_kv_heads; ++j) {
        c.lists[j].resize(len);
        std::iota(c.lists[j].begin(), c.lists[j].end(), 0);
        c.rows[j] = c.lists[j].data();
        c.num_rows[j] = len;
      }
      ComputePool pool(2);
      SparseAttention(c.params, pool);
      const std::vector<float> sparse = c.out, sparse_lse = c.lse;
      const DecodeAttentionParams::Query query{.query = c.queries[0].query,
                                               .blocks = c.blocks.data(),
                                               .context_len = len,
                                               .out = c.out.data(),
                                               .lse = c.lse.data()};
      std::fill(c.out.begin(), c.out.end(), NAN);
      DecodeAttention({.queries = {&query, 1},
                       .layout = c.params.layout,
                       .layer = c.params.layer,
                       .num_heads = c.params.num_heads,
                       .softmax_scale = c.params.softmax_scale,
                       .workspace = c.params.workspace},
                      pool);
      ASSERT_EQ(c.out, sparse);
      ASSERT_EQ(c.lse, sparse_lse);
    }
  }
}

// Only the listed rows are read: every other row is NaN, which would spread.
TEST_P(SparseAttentionTest, OtherRowsDoNotMatter) {
  for (const DType dtype : kKvDTypes) {
    SparseCase c({.dtype = dtype}, {100, 700});
    ComputePool pool(2);
    SparseAttention(c.params, pool);
    const std::vector<float> expected = c.out;
    const KvLayout& kv = c.params.layout;
    std::vector<std::byte> poisoned(c.cache.size(), std::byte{0xff});  // NaN; int8: as scale
    std::vector<const std::byte*> blocks;
    for (const std::byte* block : c.blocks)
      blocks.push_back(poisoned.data() + (block - c.cache.data()));
    for (size_t list = 0; list < c.lists.size(); ++list) {
      const int kv_head = static_cast<int>(list) % kv.num_kv_heads;
      for (const int row : c.lists[list]) {
        const std::byte* block = c.blocks[row / kv.block_size];
        CopyRows(kv, kv_head, block, row % kv.block_size,
                 poisoned.data() + (block - c.cache.data()), row % kv.block_size);
      }
    }
    for (auto& query : c.queries) query.blocks = blocks.data();
    SparseAttention(c.params, pool);
    ASSERT_EQ(c.out, expected);
  }
}

}  // namespace
}  // namespace tokenbutler
