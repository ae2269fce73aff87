#include "engine/kernels/key_scores.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

struct Shape {
  int head_dim = 64, group_size = 3, block_size = 128;
  DType dtype = DType::kBF16;
};

// Random keys in blocks that lie in reverse order; scores of the second KV head of the second
// layer.
class ScoresCase {
 public:
  ScoresCase(Shape shape, int begin, int end) {
    params.layout = {.num_layers = 2,
                     .num_kv_heads = 2,
                     .head_dim = shape.head_dim,
                     .block_size = shape.block_size,
                     .dtype = shape.dtype};
    params.layer = 1;
    params.kv_head = 1;
    params.group_size = shape.group_size;
    params.begin = begin;
    params.end = end;
    params.softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    const int num_blocks = params.layout.blocks_for(end);
    const size_t block_bytes = params.layout.block_bytes();
    cache_ = RandomCache(params.layout, num_blocks, 1);
    for (int b = 0; b < num_blocks; ++b) {
      // Blocks before `begin` must not be touched.
      const bool needed = (b + 1) * shape.block_size > begin;
      blocks_.push_back(needed ? cache_.data() + (num_blocks - 1 - b) * block_bytes : nullptr);
    }
    query_ = RandomFloats(size_t(shape.group_size) * shape.head_dim, 2, 3.0f);
    lse = RandomFloats(shape.group_size, 3, 5.0f);
    scores.resize(end - begin, NAN);
    lse_out.resize(shape.group_size, NAN);
    workspace_.resize(KeyScoresWorkspaceFloats(shape.group_size) + 16);
    void* at = workspace_.data();
    size_t space = workspace_.size() * sizeof(float);
    params.workspace = static_cast<float*>(std::align(64, space - 64, at, space));
    params.query = query_.data();
    params.blocks = blocks_.data();
    params.lse = lse.data();
    params.scores = scores.data();
    params.lse_out = lse_out.data();
  }

  KeyScoresParams params;
  std::vector<float> lse, scores, lse_out;

 private:
  std::vector<std::byte> cache_;
  std::vector<const std::byte*> blocks_;
  std::vector<float> query_, workspace_;
};

void ExpectEqualsPlain(ScoresCase& c) {
  constexpr float kTolerance = 2e-5f;
  ComputePool pool(2);
  KeyScores(c.params, pool);
  const std::vector<float> scores = c.scores, lse_out = c.lse_out;
  KeyScoresPlain(c.params);
  for (size_t i = 0; i < scores.size(); ++i) {
    ASSERT_NEAR(scores[i], c.scores[i], kTolerance) << "at " << i;
  }
  for (size_t h = 0; h < lse_out.size(); ++h) {
    if (std::isinf(c.lse_out[h])) {
      ASSERT_EQ(lse_out[h], c.lse_out[h]) << "head " << h;
    } else {
      ASSERT_NEAR(lse_out[h], c.lse_out[h], kTolerance) << "head " << h;
    }
  }
}

using KeyScoresTest = KernelTest;
INSTANTIATE_TEST_SUITE_P(Targets, KeyScoresTest, testing::ValuesIn(RunnableTargets()),
                         TargetTestName);

TEST_P(KeyScoresTest, EqualsPlainForEveryHeadAndType) {
  for (const DType dtype : kKvDTypes) {
    for (const int head_dim : {5, 32, 64, 72, 80, 96, 128, 256}) {
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " head_dim " << head_dim);
      ScoresCase c({.head_dim = head_dim, .dtype = dtype}, 0, 130);
      ExpectEqualsPlain(c);
    }
  }
}

TEST_P(KeyScoresTest, EqualsPlainForEveryGroup) {
  for (const int group_size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
    SCOPED_TRACE(testing::Message() << "group " << group_size);
    ScoresCase c({.group_size = group_size}, 0, 75);
    ExpectEqualsPlain(c);
  }
}

// 70 heads of 256 elements do not fit into one pass.
TEST_P(KeyScoresTest, ManyHeads) {
  ScoresCase c({.head_dim = 256, .group_size = 70}, 0, 20);
  ExpectEqualsPlain(c);
}

TEST_P(KeyScoresTest, EqualsPlainForEveryRange) {
  for (const int block_size : {16, 48, 128}) {
    for (const auto& [begin, end] : std::vector<std::pair<int, int>>{
             {0, 1}, {0, 64}, {3, 3}, {3, 4}, {60, 70}, {127, 400}, {128, 3000}, {500, 70000}}) {
      SCOPED_TRACE(testing::Message()
                   << "block_size " << block_size << ", [" << begin << ", " << end << ")");
      ScoresCase c({.head_dim = 8, .block_size = block_size}, begin, end);
      ExpectEqualsPlain(c);
    }
  }
}

TEST_P(KeyScoresTest, ScoresChosenTokensOnly) {
  std::vector<int32_t> tokens;
  for (int t = 3; t < 4000; t += 1 + t % 7) tokens.push_back(t);
  for (const int block_size : {16, 100, 128}) {
    ScoresCase c({.block_size = block_size}, 0, 4000);
    c.params.tokens = tokens.data();
    std::fill(c.scores.begin(), c.scores.end(), 0.0f);  // most are not written
    for (const auto& [begin, end] :
         {std::pair(0, int(tokens.size())), std::pair(5, 6), std::pair(1, 130), std::pair(7, 7)}) {
      c.params.begin = begin;
      c.params.end = end;
      ExpectEqualsPlain(c);
    }
    // A token's score is that of a scan of all, whatever its company.
    c.params.begin = 0;
    c.params.end = static_cast<int>(tokens.size());
    ComputePool pool(2);
    KeyScores(c.params, pool);
    const std::vector<float> chosen(c.scores.begin(), c.scores.begin() + c.params.end);
    c.params.tokens = nullptr;
    c.params.end = 4000;
    KeyScores(c.params, pool);
    for (size_t i = 0; i < chosen.size(); ++i) ASSERT_EQ(chosen[i], c.scores[tokens[i]]);
  }
}

TEST_P(KeyScoresTest, RawMaximumWithoutLse) {
  ScoresCase c({}, 10, 300);
  c.params.lse = nullptr;
  ExpectEqualsPlain(c);
}

TEST_P(KeyScoresTest, NoLseWanted) {
  ScoresCase c({}, 10, 300);
  ComputePool pool(2);
  KeyScores(c.params, pool);
  const std::vector<float> scores = c.scores;
  c.params.lse_out = nullptr;
  c.params.workspace = nullptr;
  KeyScores(c.params, pool);
  ASSERT_EQ(c.scores, scores);
}

TEST_P(KeyScoresTest, ResultDoesNotDependOnThreads) {
  ScoresCase c({.head_dim = 16, .group_size = 7}, 100, 40000);
  ComputePool one_thread(1);
  KeyScores(c.params, one_thread);
  const std::vector<float> scores = c.scores, lse_out = c.lse_out;
  for (const int num_threads : {2, 4}) {
    ComputePool pool(num_threads);
    KeyScores(c.params, pool);
    ASSERT_EQ(c.scores, scores);
    ASSERT_EQ(c.lse_out, lse_out);
  }
}

// Several at once, of lengths of their own, one of them empty: the same bits as one by one.
TEST_P(KeyScoresTest, SeveralAtOnceGiveWhatEachGivesAlone) {
  std::vector<ScoresCase> together, alone;
  for (const auto& [begin, end] : {std::pair(0, 5000), std::pair(7, 7), std::pair(100, 164)}) {
    together.emplace_back(Shape{}, begin, end);
    alone.emplace_back(Shape{}, begin, end);
  }
  std::vector<KeyScoresParams> params;
  for (const ScoresCase& c : together) params.push_back(c.params);
  ComputePool pool(2);
  KeyScores(params, pool);
  for (size_t i = 0; i < alone.size(); ++i) {
    KeyScores(alone[i].params, pool);
    ASSERT_EQ(together[i].scores, alone[i].scores);
    ASSERT_EQ(together[i].lse_out, alone[i].lse_out);
  }
}

}  // namespace
}  // namespace tokenbutler
