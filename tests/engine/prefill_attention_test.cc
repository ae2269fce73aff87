// The attention of prefill chunks against softmax in float64, in every way that it is computed.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/kernels/kernel_target.h"
#include "engine/kernels/kv_row.h"
#include "engine/models/rope.h"
#include "engine/prefill_math.h"
#include "gtest/gtest.h"
#include "offload/kv_store.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

constexpr int kLayer = 1;

struct Shape {
  int head_dim = 64;
  int group_size = 3;
  int num_kv_heads = 2;
  DType kv_dtype = DType::kF32;
  DType compute_dtype = DType::kF32;
  int block_size = 48;  // of the KV cache: divides no block of the attention
};

// A cache of random rows, random queries of all its tokens, and the exact attention of each.
class PrefillCase {
 public:
  PrefillCase(const Shape& shape, int num_tokens, float query_scale = 1.5f)
      : shape_(shape), num_tokens_(num_tokens) {
    config_.num_layers = 2;
    config_.num_kv_heads = shape.num_kv_heads;
    config_.num_heads = shape.num_kv_heads * shape.group_size;
    config_.head_dim = shape.head_dim;
    config_.hidden_size = config_.intermediate_size = config_.num_heads * shape.head_dim;
    const KvLayout layout{.num_layers = 2,
                          .num_kv_heads = shape.num_kv_heads,
                          .head_dim = shape.head_dim,
                          .block_size = shape.block_size,
                          .dtype = shape.kv_dtype};
    const int num_blocks = layout.blocks_for(num_tokens);
    const int64_t stride = static_cast<int64_t>(layout.block_bytes() + 63) / 64 * 64;
    store_ = *KvStore::Create(layout, {.capacity_bytes = stride * num_blocks});
    const std::vector<std::byte> cache = RandomCache(layout, num_blocks, 1);
    for (int b = 0; b < num_blocks; ++b) {
      table_.blocks.push_back(num_blocks - 1 - b);
      store_->WriteBlock(
          absl::MakeConstSpan(cache).subspan(b * layout.block_bytes(), layout.block_bytes()),
          num_blocks - 1 - b);
    }
    queries_ = RandomFloats(static_cast<size_t>(num_tokens) * query_size(), 2, query_scale);
    rows_.emplace(config_, shape.compute_dtype, *store_);
    rope_.emplace(*Rope::Create({}, shape.head_dim + shape.head_dim % 2, 4096));
  }

  int query_size() const { return config_.num_heads * config_.head_dim; }

  // What `attention` gives for tokens [start, start + num_rows), widened.
  std::vector<float> Attend(PrefillMath& math, int start, int num_rows, int window) {
    EXPECT_TRUE(rows_->Reset(num_rows).ok());
    const std::vector<int32_t> ids(num_rows);
    rows_->Add({.block_table = &table_, .token_ids = ids, .start_position = start}, *rope_);
    for (int i = 0; i < num_rows; ++i) {
      std::copy_n(queries_.data() + static_cast<size_t>(start + i) * query_size(), query_size(),
                  rows_->activations().qkv + static_cast<size_t>(i) * rows_->qkv_size());
    }
    math.Attend(*rows_, kLayer, window);
    std::vector<float> attended(static_cast<size_t>(num_rows) * query_size());
    for (size_t i = 0; i < attended.size(); ++i) {
      attended[i] = LoadElement(rows_->activations().attended, shape_.compute_dtype, i);
    }
    return attended;
  }

  // One token's query heads. [query_size()]
  std::vector<double> Expected(int token, int window) const {
    const KvLayout& layout = store_->layout();
    const int head_dim = layout.head_dim, first = window > 0 ? std::max(0, token + 1 - window) : 0;
    std::vector<double> out(query_size());
    std::vector<float> row(head_dim);
    for (int head = 0; head < config_.num_heads; ++head) {
      const int kv_head = head / shape_.group_size;
      const float* query =
          queries_.data() + static_cast<size_t>(token) * query_size() + head * head_dim;
      std::vector<double> weights;
      double max = -1e300, sum = 0;
      for (int t = first; t <= token; ++t) {
        Load(KeyRowsOf(layout, BlockOf(t), kLayer, kv_head, t % layout.block_size), &row);
        double dot = 0;
        for (int d = 0; d < head_dim; ++d) dot += double{query[d]} * row[d];
        weights.push_back(dot / std::sqrt(static_cast<double>(head_dim)));
        max = std::max(max, weights.back());
      }
      for (double& w : weights) sum += w = std::exp(w - max);
      for (int t = first; t <= token; ++t) {
        Load(ValueRowsOf(layout, BlockOf(t), kLayer, kv_head, t % layout.block_size), &row);
        for (int d = 0; d < head_dim; ++d) {
          out[head * head_dim + d] += weights[t - first] / sum * row[d];
        }
      }
    }
    return out;
  }

  int num_tokens() const { return num_tokens_; }

  // In the first KV head.
  void SetKeyToNaN(int token) {
    const KvLayout& layout = store_->layout();
    std::byte* block = store_->block(table_.blocks[token / layout.block_size]);
    const size_t at = layout.key_offset(kLayer, 0) + token % layout.block_size * layout.row_bytes();
    std::memset(block + at, 0xff, layout.row_bytes());
  }

 private:
  const std::byte* BlockOf(int token) const {
    return store_->block(table_.blocks[token / store_->layout().block_size]);
  }
  void Load(const KvRows& rows, std::vector<float>* row) const {
    LoadKvRowsPlain(rows, store_->layout(), 1, row->data());
  }

  Shape shape_;
  int num_tokens_;
  ModelConfig config_;
  std::unique_ptr<KvStore> store_;
  BlockTable table_;
  std::vector<float> queries_;  // [num_tokens, num_heads, head_dim]
  std::optional<TokenRows> rows_;
  std::optional<Rope> rope_;
};

// Root of the mean square difference over that of what is expected.
class RelativeError {
 public:
  void Add(const float* got, const std::vector<double>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      const double difference = got[i] - expected[i];
      difference_ += std::isfinite(got[i]) ? difference * difference : INFINITY;
      size_ += expected[i] * expected[i];
    }
  }
  double value() const { return std::sqrt(difference_ / size_); }

 private:
  double difference_ = 0, size_ = 0;
};

std::vector<PrefillAttentionKind> RunnableKinds() {
  std::vector<PrefillAttentionKind> kinds = {PrefillAttentionKind::kFloatBlocks,
                                             PrefillAttentionKind::kLibTorch};
  const PrefillAttentionKind fastest = FastestPrefillAttention(DType::kBF16);
  if (fastest == PrefillAttentionKind::kBf16Blocks) kinds.push_back(fastest);
  return kinds;
}

std::string KindName(const testing::TestParamInfo<PrefillAttentionKind>& param) {
  switch (param.param) {
    case PrefillAttentionKind::kBf16Blocks:
      return "bf16_blocks";
    case PrefillAttentionKind::kFloatBlocks:
      return "float_blocks";
    default:
      return "libtorch";
  }
}

class PrefillAttentionTest : public testing::TestWithParam<PrefillAttentionKind> {
 protected:
  std::unique_ptr<PrefillMath> Math(DType compute_dtype) {
    return PrefillMath::Create(compute_dtype, pool_, GetParam());
  }
  // Of products of bf16: rounded queries, keys (unless they are bf16), weights and values.
  double Tolerance(DType compute_dtype) const {
    if (GetParam() == PrefillAttentionKind::kBf16Blocks) return 1.2e-2;
    return compute_dtype == DType::kBF16 ? 4e-3 : 4e-6;
  }

  // Compares a few rows of a chunk: the first and last ones, and some between.
  void ExpectExact(PrefillCase& c, DType compute_dtype, int start, int num_rows, int window) {
    const std::unique_ptr<PrefillMath> math = Math(compute_dtype);
    const std::vector<float> got = c.Attend(*math, start, num_rows, window);
    for (int i = 0; i < num_rows; ++i) {
      if (i > 2 && i < num_rows - 2 && i % 41 != 0) continue;
      RelativeError error;
      error.Add(got.data() + static_cast<size_t>(i) * c.query_size(),
                c.Expected(start + i, window));
      EXPECT_LT(error.value(), Tolerance(compute_dtype))
          << "position " << start + i << " of a chunk of " << num_rows << " at " << start
          << ", window " << window;
    }
  }

  ComputePool pool_{2};
};
INSTANTIATE_TEST_SUITE_P(Kinds, PrefillAttentionTest, testing::ValuesIn(RunnableKinds()), KindName);

TEST_P(PrefillAttentionTest, EqualsSoftmaxAtAnyPositionAndChunk) {
  PrefillCase c({}, 256 + 600);
  for (const auto& [start, num_rows] : {std::pair{0, 1},
                                        {0, 3},
                                        {1, 1},
                                        {0, 127},
                                        {0, 128},
                                        {0, 129},
                                        {0, 600},
                                        {1, 600},
                                        {47, 3},
                                        {127, 129},
                                        {254, 3},
                                        {255, 1},
                                        {256, 1},
                                        {256, 600},
                                        {257, 127}}) {
    ExpectExact(c, DType::kF32, start, num_rows, /*window=*/0);
  }
}

TEST_P(PrefillAttentionTest, EqualsSoftmaxInAWindow) {
  PrefillCase c({}, 256 + 600);
  for (const int window : {1, 2, 31, 256, 300, 5000}) {
    for (const auto& [start, num_rows] :
         {std::pair{0, 1}, {0, 129}, {0, 600}, {30, 2}, {255, 3}, {256, 600}, {700, 128}}) {
      ExpectExact(c, DType::kF32, start, num_rows, window);
    }
  }
}

TEST_P(PrefillAttentionTest, EqualsSoftmaxForAnyShapeOfHeads) {
  for (const int head_dim : {64, 128, 80, 37}) {
    for (const int group_size : {1, 3, 7}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " group " << group_size);
      PrefillCase c({.head_dim = head_dim, .group_size = group_size}, 400);
      ExpectExact(c, DType::kF32, 0, 129, 0);
      ExpectExact(c, DType::kF32, 250, 150, 0);
      ExpectExact(c, DType::kF32, 250, 150, 70);
    }
  }
}

TEST_P(PrefillAttentionTest, EqualsSoftmaxForEveryDType) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    for (const DType kv : kKvDTypes) {
      for (const int head_dim : {64, 37}) {
        SCOPED_TRACE(testing::Message() << "compute " << DTypeName(compute) << " cache "
                                        << DTypeName(kv) << " head_dim " << head_dim);
        PrefillCase c({.head_dim = head_dim, .kv_dtype = kv, .compute_dtype = compute}, 400);
        ExpectExact(c, compute, 0, 129, 0);
        ExpectExact(c, compute, 300, 100, 0);
        ExpectExact(c, compute, 300, 100, 70);
      }
    }
  }
}

// One weight is nearly 1, and the largest logit comes late: the sums before it vanish.
TEST_P(PrefillAttentionTest, LargeLogits) {
  PrefillCase c({.kv_dtype = DType::kBF16}, 600, /*query_scale=*/60.0f);
  const std::unique_ptr<PrefillMath> math = Math(DType::kF32);
  const std::vector<float> got = c.Attend(*math, 0, 600, 0);
  RelativeError error;
  for (int i = 0; i < 600; i += 7) {
    error.Add(got.data() + static_cast<size_t>(i) * c.query_size(), c.Expected(i, 0));
  }
  EXPECT_LT(error.value(), GetParam() == PrefillAttentionKind::kBf16Blocks ? 0.15 : 1e-4);
}

TEST_P(PrefillAttentionTest, DoesNotDependOnThreads) {
  PrefillCase c({.kv_dtype = DType::kBF16, .compute_dtype = DType::kBF16}, 700);
  const std::vector<float> two = c.Attend(*Math(DType::kBF16), 100, 600, 0);
  for (const int num_threads : {1, 5}) {
    ComputePool pool(num_threads);
    const auto math = PrefillMath::Create(DType::kBF16, pool, GetParam());
    EXPECT_EQ(c.Attend(*math, 100, 600, 0), two) << num_threads;
  }
}

// Blocks of keys begin at fixed tokens, so their sums are the same ones; LibTorch's are rounded
// otherwise.
TEST_P(PrefillAttentionTest, ChunksChangeNothing) {
  const float tolerance = GetParam() == PrefillAttentionKind::kLibTorch ? 1e-5f : 0.0f;
  for (const int window : {0, 200}) {
    PrefillCase c({.kv_dtype = DType::kI8}, 600);
    const std::unique_ptr<PrefillMath> math = Math(DType::kF32);
    const std::vector<float> whole = c.Attend(*math, 0, 600, window);
    for (const int chunk : {1, 7, 512}) {
      for (int start = 0; start < 600; start += chunk) {
        const int num_rows = std::min(chunk, 600 - start);
        const std::vector<float> part = c.Attend(*math, start, num_rows, window);
        const auto* same = whole.data() + static_cast<size_t>(start) * c.query_size();
        for (size_t i = 0; i < part.size(); ++i) {
          ASSERT_NEAR(part[i], same[i], tolerance) << "chunk " << chunk << " at " << start;
        }
      }
    }
  }
}

// Workspaces keep what an earlier, larger chunk of another shape has left in them.
TEST_P(PrefillAttentionTest, ForgetsWhatCameBefore) {
  PrefillCase large({.head_dim = 128, .group_size = 7}, 700, /*query_scale=*/100.0f);
  PrefillCase small({.head_dim = 37}, 40);
  const std::unique_ptr<PrefillMath> math = Math(DType::kF32);
  const std::vector<float> before = small.Attend(*math, 10, 30, 0);
  large.Attend(*math, 100, 600, 0);
  EXPECT_EQ(small.Attend(*math, 10, 30, 0), before);
}

// A model that computes NaN must not answer as if nothing was; tokens before it are none the worse.
TEST_P(PrefillAttentionTest, NaNIsNotLost) {
  const std::unique_ptr<PrefillMath> math = Math(DType::kF32);
  PrefillCase c({}, 400);
  c.SetKeyToNaN(300);
  const std::vector<float> attended = c.Attend(*math, 100, 300, 0);
  for (int row = 0; row < 300; ++row) {
    const float first = attended[static_cast<size_t>(row) * c.query_size()];
    ASSERT_EQ(std::isnan(first), 100 + row >= 300) << "token " << 100 + row;
  }
}

// oneDNN can be told to do without what the CPU has; the process must not end for that.
TEST(FastestPrefillAttentionTest, DoesWithoutWhatOneDnnMayNotUse) {
  if (DetectCpuTarget() != CpuTarget::kAvx512Bf16) GTEST_SKIP() << "the CPU has no AVX512_BF16";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // new processes, with this one's environment
  const auto expect_under = [](const char* most, PrefillAttentionKind kind) {
    SCOPED_TRACE(most);
    setenv("ONEDNN_MAX_CPU_ISA", most, /*overwrite=*/1);
    EXPECT_EXIT(std::_Exit(100 + static_cast<int>(FastestPrefillAttention(DType::kBF16))),
                testing::ExitedWithCode(100 + static_cast<int>(kind)), "");
    unsetenv("ONEDNN_MAX_CPU_ISA");
  };
  expect_under("AVX512_CORE", PrefillAttentionKind::kFloatBlocks);
  expect_under("AVX2", PrefillAttentionKind::kFloatBlocks);
  expect_under("DEFAULT", PrefillAttentionKind::kBf16Blocks);
}

TEST(FastestPrefillAttentionTest, FollowsTheKernelTarget) {
  SetKernelTarget(CpuTarget::kPortable);
  EXPECT_EQ(FastestPrefillAttention(DType::kBF16), PrefillAttentionKind::kLibTorch);
  EXPECT_EQ(FastestPrefillAttention(DType::kF32), PrefillAttentionKind::kLibTorch);
  if (DetectCpuTarget() >= CpuTarget::kAvx512) {
    SetKernelTarget(CpuTarget::kAvx512);
    EXPECT_EQ(FastestPrefillAttention(DType::kBF16), PrefillAttentionKind::kFloatBlocks);
    EXPECT_EQ(FastestPrefillAttention(DType::kF32), PrefillAttentionKind::kFloatBlocks);
  }
  if (DetectCpuTarget() == CpuTarget::kAvx512Bf16) {
    SetKernelTarget(CpuTarget::kAvx512Bf16);
    EXPECT_EQ(FastestPrefillAttention(DType::kF32), PrefillAttentionKind::kFloatBlocks);
  }
  SetKernelTarget(DetectCpuTarget());
}

}  // namespace
}  // namespace tokenbutler
