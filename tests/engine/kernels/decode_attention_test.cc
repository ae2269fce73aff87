#include "engine/kernels/decode_attention.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

struct Shape {
  int head_dim = 64, group_size = 3, num_kv_heads = 2, block_size = 128;
  DType dtype = DType::kBF16;
};

// A cache of random rows and queries at several context lengths, all of one cache. Blocks lie in
// reverse order, so that a kernel that ignores the block table fails.
class AttentionCase {
 public:
  AttentionCase(Shape shape, std::vector<int> context_lens, float query_scale = 1.0f) {
    params.layout = {.num_layers = 2,
                     .num_kv_heads = shape.num_kv_heads,
                     .head_dim = shape.head_dim,
                     .block_size = shape.block_size,
                     .dtype = shape.dtype};
    params.layer = 1;
    params.num_heads = shape.group_size * shape.num_kv_heads;
    params.softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    int longest = 0;
    for (const int len : context_lens) longest = std::max(longest, len);
    const int num_blocks = params.layout.blocks_for(longest);
    const size_t block_bytes = params.layout.block_bytes();
    cache_ = RandomCache(params.layout, num_blocks, 1);
    for (int b = 0; b < num_blocks; ++b) {
      blocks_.push_back(cache_.data() + (num_blocks - 1 - b) * block_bytes);
    }
    const size_t query_size = size_t(params.num_heads) * shape.head_dim;
    query_ = RandomFloats(context_lens.size() * query_size, 2, query_scale);
    out.resize(query_.size(), NAN);
    lse.resize(context_lens.size() * params.num_heads, NAN);
    for (size_t i = 0; i < context_lens.size(); ++i) {
      queries.push_back({.query = query_.data() + i * query_size,
                         .blocks = blocks_.data(),
                         .context_len = context_lens[i],
                         .out = out.data() + i * query_size,
                         .lse = lse.data() + i * params.num_heads});
    }
    params.queries = queries;
    workspace_.resize(DecodeAttentionWorkspaceFloats(static_cast<int>(queries.size()),
                                                     params.num_heads, shape.head_dim) +
                      16);
    void* at = workspace_.data();
    size_t space = workspace_.size() * sizeof(float);
    params.workspace = static_cast<float*>(std::align(64, space - 64, at, space));
  }

  // Of all heads.
  void SetKeyToNaN(int token) {
    const KvLayout& layout = params.layout;
    std::byte* block = cache_.data() + (blocks_[token / layout.block_size] - cache_.data());
    for (int h = 0; h < layout.num_kv_heads; ++h) {
      const size_t at =
          layout.key_offset(params.layer, h) + token % layout.block_size * layout.row_bytes();
      std::memset(block + at, 0xff, layout.row_bytes());  // of bf16, fp16 and float32
    }
  }

  DecodeAttentionParams params;
  std::vector<DecodeAttentionParams::Query> queries;
  std::vector<float> out, lse;

 private:
  std::vector<std::byte> cache_;
  std::vector<const std::byte*> blocks_;
  std::vector<float> query_, workspace_;
};

void ExpectEqualsPlain(AttentionCase& c, float tolerance) {
  ComputePool pool(2);
  DecodeAttention(c.params, pool);
  const std::vector<float> out = c.out, lse = c.lse;
  DecodeAttentionPlain(c.params);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], c.out[i], tolerance) << "at " << i;
  for (size_t i = 0; i < lse.size(); ++i) {
    ASSERT_NEAR(lse[i], c.lse[i], tolerance * (1 + std::abs(c.lse[i]))) << "head " << i;
  }
}

using DecodeAttentionTest = KernelTest;
INSTANTIATE_TEST_SUITE_P(Targets, DecodeAttentionTest, testing::ValuesIn(RunnableTargets()),
                         TargetTestName);

TEST_P(DecodeAttentionTest, EqualsPlainForEveryHeadAndType) {
  for (const DType dtype : kKvDTypes) {
    for (const int head_dim : {5, 8, 64, 80, 96, 128, 256}) {
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " head_dim " << head_dim);
      AttentionCase c({.head_dim = head_dim, .dtype = dtype}, {1, 65, 300});
      ExpectEqualsPlain(c, 3e-6f);
    }
  }
}

TEST_P(DecodeAttentionTest, EqualsPlainForEveryGroup) {
  for (const DType dtype : kKvDTypes) {
    for (const int head_dim : {64, 72, 128}) {
      for (const int group_size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17}) {
        SCOPED_TRACE(testing::Message()
                     << DTypeName(dtype) << " head_dim " << head_dim << " group " << group_size);
        AttentionCase c({.head_dim = head_dim, .group_size = group_size, .dtype = dtype}, {130});
        ExpectEqualsPlain(c, 3e-6f);
      }
    }
  }
}

TEST_P(DecodeAttentionTest, EqualsPlainForEveryLengthAndWindow) {
  const std::vector<int> lens = {1, 2, 4, 63, 64, 65, 127, 257, 1025, 4200};
  for (const int block_size : {16, 48, 128}) {
    SCOPED_TRACE(testing::Message() << "block_size " << block_size);
    AttentionCase c({.head_dim = 16, .block_size = block_size}, lens);
    ExpectEqualsPlain(c, 3e-6f);
  }
  for (const int window : {1, 63, 100, 1000}) {
    SCOPED_TRACE(testing::Message() << "window " << window);
    AttentionCase c({.head_dim = 16, .block_size = 48}, lens);
    c.params.window = window;
    ExpectEqualsPlain(c, 3e-6f);
  }
}

// Queries so large that nearly all of the weight falls on one token and exponentials underflow.
TEST_P(DecodeAttentionTest, ExtremeLogits) {
  AttentionCase c({}, {200, 3}, 200.0f);
  ExpectEqualsPlain(c, 1e-4f);
}

TEST_P(DecodeAttentionTest, ResultDependsNeitherOnNeighboursNorOnThreads) {
  const std::vector<int> lens = {5, 900, 64, 4097, 1};
  AttentionCase all({.head_dim = 24}, lens);
  ComputePool one_thread(1);
  DecodeAttention(all.params, one_thread);
  const std::vector<float> expected = all.out;
  for (const int num_threads : {2, 3}) {
    ComputePool pool(num_threads);
    DecodeAttention(all.params, pool);
    ASSERT_EQ(all.out, expected);
    for (size_t i = 0; i < lens.size(); ++i) {
      AttentionCase alone({.head_dim = 24}, lens);
      alone.params.queries = absl::MakeConstSpan(alone.queries).subspan(i, 1);
      DecodeAttention(alone.params, pool);
      const size_t size = expected.size() / lens.size();
      ASSERT_EQ(std::memcmp(alone.out.data() + i * size, expected.data() + i * size,
                            size * sizeof(float)),
                0)
          << "length " << lens[i] << ", " << num_threads << " threads";
    }
  }
}

// The first heads of a large group give the bits that they give as a group of their own: kernels
// may take several heads together, but never add in another order because of it.
TEST_P(DecodeAttentionTest, ResultDoesNotDependOnTheSizeOfTheGroup) {
  constexpr int kHeadDim = 64;
  for (const DType dtype : kKvDTypes) {
    AttentionCase all({.head_dim = kHeadDim, .group_size = 16, .num_kv_heads = 1, .dtype = dtype},
                      {200});
    ComputePool pool(1);
    DecodeAttention(all.params, pool);
    for (int group_size = 1; group_size < 16; ++group_size) {
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " group " << group_size);
      AttentionCase few(
          {.head_dim = kHeadDim, .group_size = group_size, .num_kv_heads = 1, .dtype = dtype},
          {200});
      DecodeAttention(few.params, pool);
      ASSERT_EQ(std::memcmp(few.out.data(), all.out.data(), few.out.size() * sizeof(float)), 0);
      ASSERT_EQ(std::memcmp(few.lse.data(), all.lse.data(), few.lse.size() * sizeof(float)), 0);
    }
  }
}

// A million tokens that all live in one block: the output is that block's, the lse log(n) larger.
TEST_P(DecodeAttentionTest, AMillionTokens) {
  constexpr int kRepeats = 8192;
  AttentionCase once({.head_dim = 16, .num_kv_heads = 1}, {128});
  ComputePool pool(2);
  DecodeAttention(once.params, pool);
  const std::vector<float> out = once.out, lse = once.lse;
  const std::vector<const std::byte*> blocks(kRepeats, once.queries[0].blocks[0]);
  once.queries[0].blocks = blocks.data();
  once.queries[0].context_len = 128 * kRepeats;
  DecodeAttention(once.params, pool);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(once.out[i], out[i], 1e-4f);
  for (size_t i = 0; i < lse.size(); ++i) {
    ASSERT_NEAR(once.lse[i], lse[i] + std::log(static_cast<float>(kRepeats)), 1e-4f);
  }
}

// A model that computes NaN must not answer as if nothing was.
TEST_P(DecodeAttentionTest, NaNIsNotLost) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    AttentionCase c({.dtype = dtype}, {300});
    c.SetKeyToNaN(70);
    ComputePool pool(2);
    DecodeAttention(c.params, pool);
    for (const float x : c.out) ASSERT_TRUE(std::isnan(x)) << DTypeName(dtype);
  }
}

TEST_P(DecodeAttentionTest, BlocksBeforeTheWindowAreNotTouched) {
  AttentionCase c({.block_size = 16}, {100});
  c.params.window = 20;  // tokens 80..99: blocks 5 and 6
  std::vector<const std::byte*> blocks(7, nullptr);
  blocks[5] = c.queries[0].blocks[5];
  blocks[6] = c.queries[0].blocks[6];
  c.queries[0].blocks = blocks.data();
  ExpectEqualsPlain(c, 3e-6f);
}

}  // namespace
}  // namespace tokenbutler
