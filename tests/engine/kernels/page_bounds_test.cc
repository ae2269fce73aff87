#include "engine/kernels/page_bounds.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

using PageBoundsTest = KernelTest;
INSTANTIATE_TEST_SUITE_P(Targets, PageBoundsTest, testing::ValuesIn(RunnableTargets()),
                         TargetTestName);

TEST_P(PageBoundsTest, BoundsEqualPlainToTheBit) {
  for (const DType dtype : kKvDTypes) {
    for (const int head_dim : {1, 7, 32, 64, 80, 128, 256}) {
      constexpr int kPages = 3;
      const size_t size = static_cast<size_t>(kPages) * kPageTokens * head_dim;
      const NarrowKeys keys = NarrowRows(RandomFloats(size, 1), head_dim, dtype);
      const size_t bytes = size_t{2} * kPages * head_dim * DTypeBytes(PageBoundsDType(dtype));
      std::vector<std::byte> fast(bytes), plain(bytes);
      PageBoundsParams params{.keys = keys.bytes.data(),
                              .dtype = dtype,
                              .key_scales = keys.scales(),
                              .head_dim = head_dim,
                              .num_pages = kPages,
                              .bounds = fast.data()};
      PageBounds(params);
      params.bounds = plain.data();
      PageBoundsPlain(params);
      EXPECT_EQ(fast, plain) << DTypeName(dtype) << " head_dim " << head_dim;
      // No key of the page lies outside.
      for (size_t i = 0; i < size; ++i) {
        const size_t page = i / (kPageTokens * head_dim), channel = i % head_dim;
        const DType stored = PageBoundsDType(dtype);
        EXPECT_LE(keys.exact[i], LoadElement(fast.data(), stored, 2 * page * head_dim + channel));
        EXPECT_GE(keys.exact[i],
                  LoadElement(fast.data(), stored, (2 * page + 1) * head_dim + channel));
      }
    }
  }
}

// Bounds of random keys in records that are padded and lie in runs in reverse order.
struct ScoreCase {
  ScoreCase(DType dtype, int head_dim, int group_size, int num_pages) : num_pages(num_pages) {
    constexpr int kPagesPerRecord = 3, kRecordsPerRun = 2;
    const size_t page_bytes = 2 * head_dim * DTypeBytes(dtype);
    params = {.records_per_run = kRecordsPerRun,
              .record_bytes = (kPagesPerRecord * page_bytes + 63) / 64 * 64,
              .pages_per_record = kPagesPerRecord,
              .num_pages = num_pages,
              .dtype = dtype,
              .head_dim = head_dim,
              .group_size = group_size,
              .heads = {}};
    constexpr size_t kOffset = 64;
    const size_t run_bytes = kOffset + kRecordsPerRun * params.record_bytes;
    const int num_runs = num_pages / (kPagesPerRecord * kRecordsPerRun) + 1;
    state.resize(num_runs * run_bytes, std::byte{0xff});
    for (int r = 0; r < num_runs; ++r) {
      runs.push_back(state.data() + (num_runs - 1 - r) * run_bytes);
    }
    const size_t row_bytes = head_dim * DTypeBytes(dtype);
    keys = Narrow(RandomFloats(static_cast<size_t>(num_pages) * kPageTokens * head_dim, 5), dtype);
    for (int page = 0; page < num_pages; ++page) {
      const int record = page / kPagesPerRecord;
      PageBoundsPlain({.keys = keys.data() + static_cast<size_t>(page) * kPageTokens * row_bytes,
                       .dtype = dtype,
                       .head_dim = head_dim,
                       .num_pages = 1,
                       .bounds = state.data() + (runs[record / kRecordsPerRun] - state.data()) +
                                 kOffset + (record % kRecordsPerRun) * params.record_bytes +
                                 (page % kPagesPerRecord) * page_bytes});
    }
    queries = RandomFloats(size_t{2} * group_size * head_dim, 6);
    scores.resize(2 * static_cast<size_t>(num_pages), NAN);
    for (int h = 0; h < 2; ++h) {
      heads.push_back({.runs = runs.data(),
                       .offset = kOffset,
                       .queries = queries.data() + static_cast<size_t>(h) * group_size * head_dim,
                       .scores = scores.data() + static_cast<size_t>(h) * num_pages});
    }
    params.heads = heads;
  }

  int num_pages;
  PageScoresParams params;
  std::vector<std::byte> state, keys;
  std::vector<const std::byte*> runs;
  std::vector<float> queries, scores;
  std::vector<PageScoresParams::Head> heads;
};

TEST_P(PageBoundsTest, ScoresEqualPlain) {
  ComputePool pool(2);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int head_dim : {8, 64, 80}) {
      for (const int group_size : {1, 3, 7, 9}) {
        for (const int num_pages : {1, 16, 65, 200}) {
          SCOPED_TRACE(testing::Message() << DTypeName(dtype) << " head_dim " << head_dim
                                          << " group " << group_size << " pages " << num_pages);
          ScoreCase c(dtype, head_dim, group_size, num_pages);
          PageScores(c.params, pool);
          const std::vector<float> fast = c.scores;
          PageScoresPlain(c.params);
          for (size_t i = 0; i < fast.size(); ++i) {
            ASSERT_NEAR(fast[i], c.scores[i], 1e-5f * (1 + std::abs(c.scores[i])));
          }
        }
      }
    }
  }
}

TEST_P(PageBoundsTest, NoTokenScoresAboveItsPage) {
  constexpr int kDim = 64, kPages = 40;
  ScoreCase c(DType::kF32, kDim, 1, kPages);
  ComputePool pool(1);
  PageScores(c.params, pool);
  const float* keys = reinterpret_cast<const float*>(c.keys.data());
  for (int t = 0; t < kPages * kPageTokens; ++t) {
    double dot = 0;
    for (int i = 0; i < kDim; ++i) dot += double{c.queries[i]} * keys[t * kDim + i];
    EXPECT_LE(dot, c.scores[t / kPageTokens] + 1e-4);
  }
}

TEST_P(PageBoundsTest, ScoresDoNotDependOnThreads) {
  ScoreCase one(DType::kBF16, 64, 3, 3000), many(DType::kBF16, 64, 3, 3000);
  ComputePool one_thread(1), three_threads(3);
  PageScores(one.params, one_thread);
  PageScores(many.params, three_threads);
  EXPECT_EQ(one.scores, many.scores);
}

}  // namespace
}  // namespace tokenbutler
