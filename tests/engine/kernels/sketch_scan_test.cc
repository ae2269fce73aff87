#include "engine/kernels/sketch_scan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "engine/kernels/top_k.h"
#include "gtest/gtest.h"
#include "tests/engine/kernels/sketch_testing.h"

namespace tokenbutler {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// A scan of a case's heads, with room for the results.
class ScanOf {
 public:
  struct Range {
    int begin, end, k;
  };

  // `ranges`: of each head, repeated as needed.
  ScanOf(const SketchCase& c, std::vector<Range> ranges,
         std::optional<std::vector<int32_t>> blocks = std::nullopt)
      : blocks_(std::move(blocks)) {
    params.layout = c.layout;
    params.group_size = c.group_size;
    params.softmax_scale = c.softmax_scale;
    tokens_.resize(c.num_heads);
    scores_.resize(c.num_heads);
    for (int h = 0; h < c.num_heads; ++h) {
      const Range range = ranges[h % ranges.size()];
      tokens_[h].assign(std::max(0, range.k) + 16, -1);
      scores_[h].assign(std::max(0, range.k), kNan);
      heads.push_back({.keys = c.sketched[h],
                       .queries = c.queries[h].data(),
                       .lse = c.lse[h].data(),
                       .begin = range.begin,
                       .end = range.end,
                       .k = range.k,
                       .tokens = tokens_[h].data(),
                       .scores = scores_[h].data()});
      if (blocks_) heads.back().blocks = absl::MakeConstSpan(*blocks_);
    }
    params.heads = absl::MakeSpan(heads);
    workspace_ = std::make_unique<AlignedBytes>(SketchScanWorkspaceBytes(heads));
    params.workspace = workspace_->data();
  }

  void Run(int num_threads = 2) {
    ComputePool pool(num_threads);
    SketchScan(params, pool);
  }

  std::vector<int32_t> tokens(int h) const {
    return {tokens_[h].begin(), tokens_[h].begin() + heads[h].num_selected};
  }
  std::vector<float> scores(int h) const {
    return {scores_[h].begin(), scores_[h].begin() + heads[h].num_selected};
  }

  SketchScanParams params;
  std::vector<SketchScanParams::Head> heads;

 private:
  const std::optional<std::vector<int32_t>> blocks_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::vector<float>> scores_;
  std::unique_ptr<AlignedBytes> workspace_;
};

// What a scan is to be equal to: all scores of one head.
std::vector<float> AllScores(const SketchCase& c, int h, int begin, int end) {
  std::vector<float> scores(std::max(0, end - begin));
  SketchScoresParams::Head head = {.keys = c.sketched[h],
                                   .queries = c.queries[h].data(),
                                   .lse = c.lse[h].data(),
                                   .begin = begin,
                                   .end = end,
                                   .scores = scores.data()};
  const SketchScoresParams params = {.layout = c.layout,
                                     .group_size = c.group_size,
                                     .softmax_scale = c.softmax_scale,
                                     .heads = absl::MakeConstSpan(&head, 1)};
  ComputePool pool(1);
  SketchScores(params, pool);
  return scores;
}

std::vector<int32_t> Best(const std::vector<float>& scores, int k) {
  const int n = static_cast<int>(scores.size());
  std::vector<int32_t> indices(std::min(k, n) + 16);
  indices.resize(TopK(scores.data(), n, k, indices.data()));
  return indices;
}

void ExpectEqualsScoresAndTopK(const SketchCase& c, const ScanOf& scan) {
  for (int h = 0; h < c.num_heads; ++h) {
    const SketchScanParams::Head& head = scan.heads[h];
    const std::vector<float> scores = AllScores(c, h, head.begin, head.end);
    std::vector<int32_t> expected = Best(scores, head.k);
    std::vector<float> expected_scores;
    for (int32_t& token : expected) {
      expected_scores.push_back(scores[token]);
      token += head.begin;
    }
    ASSERT_EQ(scan.tokens(h), expected) << "head " << h;
    ASSERT_EQ(scan.scores(h), expected_scores) << "head " << h;
  }
}

// The blocks of a range that a partial scan of it is given: a part of them, the first and the last,
// which reach outside of it, included.
std::vector<int32_t> SomeBlocks(const SketchCase& c, int begin, int end, int every) {
  std::vector<int32_t> blocks;
  const int first = begin / c.layout.block_size, last = (end - 1) / c.layout.block_size;
  for (int b = first; b <= last; ++b) {
    if ((b - first) % every == 0 || b == last) blocks.push_back(b);
  }
  return blocks;
}

double CommonPart(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  std::vector<int32_t> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  return static_cast<double>(common.size()) / std::max<size_t>(1, a.size());
}

using SketchScanTest = KernelTest;
INSTANTIATE_TEST_SUITE_P(Targets, SketchScanTest, testing::ValuesIn(RunnableTargets()),
                         TargetTestName);

TEST_P(SketchScanTest, EqualsScoresAndTopK) {
  for (const int block_size : {16, 48, 128}) {
    const int bits = block_size == 48 ? 1 : 2;
    const SketchCase c({.head_dim = 32, .block_size = block_size, .bits = bits}, 20000, 3);
    for (const int begin : {0, 5, 128, 8200}) {
      for (const int end : {8201, 12345, 20000}) {
        SCOPED_TRACE(testing::Message() << begin << " to " << end << " of blocks " << block_size);
        ScanOf scan(c, {{begin, end, 300}, {begin, end, 7}});
        scan.Run();
        ExpectEqualsScoresAndTopK(c, scan);
      }
    }
  }
}

TEST_P(SketchScanTest, HeadsOfDifferentRanges) {
  const SketchCase c({.head_dim = 64}, 30000, 2, 4, 5);
  ScanOf scan(c,
              {{0, 30000, 500}, {100, 90, 10}, {3000, 3010, 20}, {29990, 30000, 0}, {7, 23, 16}});
  scan.Run(3);
  for (const int h : {0, 2, 3, 4}) {
    ASSERT_EQ(scan.heads[h].num_selected,
              std::min(scan.heads[h].k, scan.heads[h].end - scan.heads[h].begin));
  }
  ASSERT_EQ(scan.heads[1].num_selected, 0);
  scan.heads[1].begin = scan.heads[1].end = 90;
  ExpectEqualsScoresAndTopK(c, scan);
}

// Thresholds are guessed from a few blocks. Where these hold all that is important, the guess is
// wrong, whichever blocks are looked at.
TEST_P(SketchScanTest, WrongGuessesDoNotChangeTheResult) {
  for (const int residue : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    SCOPED_TRACE(residue);
    SketchCase c({.head_dim = 32, .block_size = 16}, 3200, 2, 4, 1);
    for (int b = residue; b < 200; b += 10) {
      float* keys = c.keys[0].data() + b * 16 * 32;
      for (int i = 0; i < 16 * 32; ++i) keys[i] += c.queries[0][i % 32];
      SketchKeys({.layout = c.layout,
                  .keys = keys,
                  .dtype = DType::kF32,
                  .key_stride_bytes = 32 * sizeof(float),
                  .record = const_cast<std::byte*>(c.sketched[0].record(c.layout, b))});
    }
    ScanOf scan(c, {{10, 3190, 200}});
    scan.Run();
    ExpectEqualsScoresAndTopK(c, scan);
  }
}

// NaN passes every threshold, and must not stand in for numbers that did not pass one: the blocks
// from which the threshold is guessed hold the best, so that few others pass.
TEST_P(SketchScanTest, NoNumberIsBehindNan) {
  for (const int spread : {12, 13, 25}) {
    SCOPED_TRACE(spread);
    SketchCase c({.head_dim = 32, .block_size = 16}, 3200, 2, 4, 1);
    for (int b = 0; b < 200; ++b) {
      auto* record = const_cast<std::byte*>(c.sketched[0].record(c.layout, b));
      float* keys = c.keys[0].data() + b * 16 * 32;
      const bool is_sampled = (2 * (b * 16 / 200) + 1) * 200 / 32 == b;
      for (int i = 0; i < 16 * 32 && is_sampled; ++i) keys[i] += c.queries[0][i % 32];
      SketchKeys({.layout = c.layout,
                  .keys = keys,
                  .dtype = DType::kF32,
                  .key_stride_bytes = 32 * sizeof(float),
                  .record = record});
      if (is_sampled || b % spread != 1) continue;
      const uint16_t nan = 0x7fc0;  // bf16
      std::memcpy(record + c.layout.zeros_offset(), &nan, sizeof(nan));
    }
    ScanOf scan(c, {{0, 3200, 200}});
    scan.Run();
    ExpectEqualsScoresAndTopK(c, scan);
    for (const float score : scan.scores(0)) ASSERT_FALSE(std::isnan(score));
  }
}

TEST_P(SketchScanTest, AnEmptyRangeChoosesNone) {
  const SketchCase c({.head_dim = 32}, 2000, 1, 2, 1);
  ScanOf scan(c, {{500, 500, 10}});
  for (SketchScanParams::Head& head : scan.heads) head.num_selected = 7;  // of an earlier scan
  scan.Run();
  for (const SketchScanParams::Head& head : scan.heads) EXPECT_EQ(head.num_selected, 0);
}

// Scores that are no numbers come last, and spoil no threshold.
TEST_P(SketchScanTest, BrokenQueriesChooseTheFirst) {
  SketchCase c({.head_dim = 32}, 20000, 1);
  c.queries[1].assign(32, std::numeric_limits<float>::infinity());
  ScanOf scan(c, {{100, 19000, 300}});
  scan.Run();
  ASSERT_EQ(scan.heads[1].num_selected, 300);
  for (int i = 0; i < 300; ++i) ASSERT_EQ(scan.tokens(1)[i], 100 + i);
  ExpectEqualsScoresAndTopK(SketchCase({.head_dim = 32}, 20000, 1, 3, 1), scan);
}

TEST_P(SketchScanTest, ThreadsDoNotChangeTheResult) {
  const SketchCase c({.head_dim = 64}, 40000, 3);
  for (const bool is_partial : {false, true}) {
    std::optional<std::vector<int32_t>> blocks;
    if (is_partial) blocks = SomeBlocks(c, 100, 39000, 4);
    ScanOf one(c, {{100, 39000, 1000}}, blocks);
    one.Run(1);
    for (const int num_threads : {2, 3}) {
      ScanOf many(c, {{100, 39000, 1000}}, blocks);
      many.Run(num_threads);
      for (int h = 0; h < c.num_heads; ++h) {
        ASSERT_EQ(many.tokens(h), one.tokens(h));
        ASSERT_EQ(many.scores(h), one.scores(h));
      }
    }
  }
}

TEST_P(SketchScanTest, PartialScanEqualsScoresOfItsBlocksAndTopK) {
  for (const int bits : {1, 2, 4}) {
    const SketchCase c({.head_dim = 64, .bits = bits}, 20000, 3);
    for (const int every : {1, 2, 5, 40}) {
      SCOPED_TRACE(testing::Message() << bits << " bits, every " << every);
      constexpr int kBegin = 40, kEnd = 19870, kTop = 300;
      const std::vector<int32_t> blocks = SomeBlocks(c, kBegin, kEnd, every);
      ScanOf scan(c, {{kBegin, kEnd, kTop}}, blocks);
      scan.Run();
      for (int h = 0; h < c.num_heads; ++h) {
        const std::vector<float> scores = AllScores(c, h, kBegin, kEnd);
        std::vector<float> kept(scores.size(), -kInf);
        for (const int32_t b : blocks) {
          for (int t = std::max(b * 128, kBegin); t < std::min((b + 1) * 128, kEnd); ++t) {
            kept[t - kBegin] = scores[t - kBegin];
          }
        }
        std::vector<int32_t> expected = Best(kept, kTop);
        for (int32_t& token : expected) token += kBegin;
        ASSERT_EQ(scan.tokens(h).size(), expected.size());
        for (const int32_t token : scan.tokens(h)) ASSERT_GT(kept[token - kBegin], -kInf);
        // Queries are rounded for other batches of blocks.
        ASSERT_GE(CommonPart(scan.tokens(h), expected), 0.97);
      }
    }
  }
}

TEST_P(SketchScanTest, IsNearPlain) {
  const SketchCase c({.head_dim = 64}, 9000, 3);
  for (const int every : {0, 2, 4}) {
    SCOPED_TRACE(every);
    std::optional<std::vector<int32_t>> blocks;
    if (every > 0) blocks = SomeBlocks(c, 200, 8950, every);
    ScanOf fast(c, {{200, 8950, 200}}, blocks);
    ScanOf plain(c, {{200, 8950, 200}}, blocks);
    SketchScanPlain(plain.params);
    fast.Run();
    for (int h = 0; h < c.num_heads; ++h) {
      ASSERT_EQ(fast.heads[h].num_selected, plain.heads[h].num_selected);
      ASSERT_GE(CommonPart(fast.tokens(h), plain.tokens(h)), 0.96);
    }
  }
}

// However few the blocks are, and however wrong the guess: all their tokens if k is more.
TEST_P(SketchScanTest, PartialScanOfFewerThanKTokens) {
  const SketchCase c({.head_dim = 32}, 2000, 2);
  const std::vector<std::pair<std::vector<int32_t>, int>> cases = {
      {{}, 0}, {{0}, 118}, {{3}, 128}, {{15}, 55}, {{0, 7, 15}, 301}};
  for (const auto& [blocks, num_tokens] : cases) {
    for (const int k : {1, 117, 118, 300, 5000}) {
      SCOPED_TRACE(testing::Message() << blocks.size() << " blocks, " << k);
      ScanOf scan(c, {{10, 1975, k}}, blocks);
      scan.Run();
      for (int h = 0; h < c.num_heads; ++h) {
        ASSERT_EQ(SketchScanTokens(c.layout, scan.heads[h]), num_tokens);
        ASSERT_EQ(scan.heads[h].num_selected, std::min(k, num_tokens));
        const std::vector<int32_t> tokens = scan.tokens(h);
        ASSERT_TRUE(std::is_sorted(tokens.begin(), tokens.end()));
        ASSERT_EQ(std::adjacent_find(tokens.begin(), tokens.end()), tokens.end());
        for (const int32_t token : tokens) {
          ASSERT_TRUE(std::binary_search(blocks.begin(), blocks.end(), token / 128)) << token;
          ASSERT_GE(token, 10);
          ASSERT_LT(token, 1975);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tokenbutler
