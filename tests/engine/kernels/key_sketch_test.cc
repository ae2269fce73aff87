#include "engine/kernels/key_sketch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "engine/kernels/cpu/sketch_codes.h"
#include "engine/kernels/cpu/sketch_pass.h"
#include "engine/kernels/top_k.h"
#include "gtest/gtest.h"
#include "tests/engine/kernels/sketch_testing.h"

namespace tokenbutler {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

using KeySketchTest = KernelTest;
INSTANTIATE_TEST_SUITE_P(Targets, KeySketchTest, testing::ValuesIn(RunnableTargets()),
                         TargetTestName);

TEST(SketchLayoutTest, ValidLayouts) {
  EXPECT_TRUE((SketchLayout{.head_dim = 64}).IsValid());
  EXPECT_TRUE((SketchLayout{.head_dim = 256, .block_size = 1024, .bits = 4}).IsValid());
  EXPECT_TRUE((SketchLayout{.head_dim = 32, .block_size = 16, .bits = 1}).IsValid());
  EXPECT_TRUE((SketchLayout{.head_dim = 16}).IsValid());
  EXPECT_FALSE((SketchLayout{.head_dim = 8}).IsValid());
  EXPECT_FALSE((SketchLayout{.head_dim = 72}).IsValid());
  EXPECT_FALSE((SketchLayout{.head_dim = 272}).IsValid());
  EXPECT_FALSE((SketchLayout{.head_dim = 64, .block_size = 24}).IsValid());
  EXPECT_FALSE((SketchLayout{.head_dim = 64, .block_size = 2048}).IsValid());
  EXPECT_FALSE((SketchLayout{.head_dim = 64, .bits = 3}).IsValid());
}

// 16 bytes of codes a token, 2 of scales and zeros.
TEST(SketchLayoutTest, SizesOfARecord) {
  const SketchLayout layout{.head_dim = 64};
  EXPECT_EQ(layout.codes_offset(), 256u);
  EXPECT_EQ(layout.sub_block_bytes(), 256u);
  EXPECT_EQ(layout.record_bytes(), 18u * 128u);
  for (const int bits : {1, 2, 4}) {
    for (int head_dim = 32; head_dim <= 256; head_dim += 16) {
      const SketchLayout any{.head_dim = head_dim, .bits = bits};
      EXPECT_EQ(any.codes_offset() % 64, 0u);
      EXPECT_EQ(any.sub_block_bytes() % 64, 0u);
      EXPECT_EQ(any.record_bytes() % 64, 0u);
    }
  }
}

struct Sketches {
  AlignedBytes fast, plain;
};

Sketches SketchBoth(const SketchLayout& layout, const std::vector<float>& values, DType dtype) {
  const NarrowKeys keys = NarrowRows(values, layout.head_dim, dtype);
  Sketches records{AlignedBytes(layout.record_bytes()), AlignedBytes(layout.record_bytes())};
  SketchKeysParams params = {.layout = layout,
                             .keys = keys.bytes.data(),
                             .dtype = dtype,
                             .key_stride_bytes = layout.head_dim * DTypeBytes(dtype),
                             .key_scales = keys.scales(),
                             .record = records.fast.data()};
  SketchKeys(params);
  params.record = records.plain.data();
  SketchKeysPlain(params);
  return records;
}

TEST_P(KeySketchTest, RecordEqualsPlain) {
  for (const int bits : {1, 2, 4}) {
    for (const int head_dim : {16, 32, 64, 80, 96, 128, 256}) {
      for (const int block_size : {16, 48, 128, 256}) {
        SCOPED_TRACE(testing::Message() << bits << " bits, " << head_dim << " x " << block_size);
        const SketchLayout layout{.head_dim = head_dim, .block_size = block_size, .bits = bits};
        const std::vector<float> keys = RandomFloats(size_t(head_dim) * block_size, 1, 4.0f);
        for (const DType dtype : kKvDTypes) {
          Sketches records = SketchBoth(layout, keys, dtype);
          ASSERT_EQ(std::memcmp(records.fast.data(), records.plain.data(), layout.record_bytes()),
                    0);
        }
      }
    }
  }
}

TEST_P(KeySketchTest, CodesAreNearest) {
  for (const int bits : {1, 2, 4}) {
    const SketchLayout layout{.head_dim = 64, .bits = bits};
    const std::vector<float> keys = RandomFloats(64 * 128, 5);
    Sketches records = SketchBoth(layout, keys, DType::kBF16);
    const std::byte* record = records.fast.data();
    for (int c = 0; c < 64; ++c) {
      const float scale = SketchScale(layout, record, c), zero = SketchZero(layout, record, c);
      for (int t = 0; t < 128; ++t) {
        const float key = ToFloat(ToBF16(keys[t * 64 + c]));
        const float distance = std::abs(zero + scale * SketchCode(layout, record, t, c) - key);
        for (int code = 0; code <= layout.levels(); ++code) {
          ASSERT_LE(distance, std::abs(zero + scale * code - key) + 0.02f * scale);
        }
      }
    }
  }
}

// Outliers do not take levels away from the many; keys far from zero do not cost precision.
TEST_P(KeySketchTest, TwoBitLevelsFitTheKeys) {
  constexpr int kDim = 32, kTokens = 128;
  const SketchLayout layout{.head_dim = kDim, .bits = 2};
  for (const float mean : {0.0f, 50.0f}) {
    std::vector<float> keys = RandomFloats(kDim * kTokens, 7);
    for (float& key : keys) key += mean;
    for (int c = 0; c < kDim; ++c) keys[c] += 3;
    const Sketches records = SketchBoth(layout, keys, DType::kF32);
    const std::byte* record = const_cast<Sketches&>(records).fast.data();
    double error = 0, even_error = 0;
    for (int c = 0; c < kDim; ++c) {
      float low = kInf, high = -kInf;
      for (int t = 0; t < kTokens; ++t) {
        low = std::min(low, keys[t * kDim + c]);
        high = std::max(high, keys[t * kDim + c]);
      }
      const float scale = SketchScale(layout, record, c), zero = SketchZero(layout, record, c);
      const float step = (high - low) / 3;
      for (int t = 0; t < kTokens; ++t) {
        const float key = keys[t * kDim + c];
        error += std::pow(zero + scale * SketchCode(layout, record, t, c) - key, 2);
        even_error += std::pow(low + step * std::nearbyint((key - low) / step) - key, 2);
      }
    }
    EXPECT_LT(error, 0.6 * even_error) << mean;
  }
}

// A channel of one value is exact, and one of garbage spoils no other.
TEST_P(KeySketchTest, ConstantAndBrokenChannels) {
  for (const int bits : {1, 2, 4}) {
    const SketchLayout layout{.head_dim = 32, .bits = bits};
    std::vector<float> keys = RandomFloats(32 * 128, 6);
    for (int t = 0; t < 128; ++t) {
      keys[t * 32 + 3] = 1.5f;
      keys[t * 32 + 4] = 0;
      keys[t * 32 + 5] = t % 2 == 0 ? 3e38f : -3e38f;
      keys[t * 32 + 6] = std::ldexp(1.0f, -140) * t;
    }
    const Sketches whole = SketchBoth(layout, keys, DType::kF32);
    for (int t = 0; t < 128; t += 7) {
      keys[t * 32 + 9] = kInf;
      keys[t * 32 + 10] = NAN;
      keys[t * 32 + 11] = -kInf;
    }
    Sketches broken = SketchBoth(layout, keys, DType::kF32);
    const std::byte* record = broken.fast.data();
    const std::byte* expected = const_cast<Sketches&>(whole).fast.data();
    for (int c = 0; c < 32; ++c) {
      ASSERT_TRUE(std::isfinite(SketchScale(layout, record, c))) << c;
      ASSERT_TRUE(std::isfinite(SketchZero(layout, record, c))) << c;
      if (c >= 9 && c <= 11) continue;
      for (int t = 0; t < 128; ++t) {
        ASSERT_EQ(SketchCode(layout, record, t, c), SketchCode(layout, expected, t, c))
            << "token " << t << " channel " << c;
      }
    }
    for (int t = 0; t < 128; ++t) {
      ASSERT_FLOAT_EQ(SketchZero(layout, record, 3) +
                          SketchScale(layout, record, 3) * SketchCode(layout, record, t, 3),
                      1.5f);
    }
  }
}

// Scores of all heads of a case, by the fast and the plain function.
struct BothScores {
  std::vector<std::vector<float>> fast, plain;  // [head][...]
};

BothScores ScoreBoth(const SketchCase& c, int begin, int end, bool with_lse = true) {
  BothScores both;
  const int n = end - begin;
  both.fast.assign(c.num_heads, std::vector<float>(n, NAN));
  both.plain = both.fast;
  std::vector<SketchScoresParams::Head> heads;
  for (int h = 0; h < c.num_heads; ++h) {
    heads.push_back({.keys = c.sketched[h],
                     .queries = c.queries[h].data(),
                     .lse = with_lse ? c.lse[h].data() : nullptr,
                     .begin = begin,
                     .end = end,
                     .scores = both.fast[h].data()});
  }
  const SketchScoresParams params = {.layout = c.layout,
                                     .group_size = c.group_size,
                                     .softmax_scale = c.softmax_scale,
                                     .heads = heads};
  ComputePool pool(2);
  SketchScores(params, pool);
  for (int h = 0; h < c.num_heads; ++h) heads[h].scores = both.plain[h].data();
  SketchScoresPlain(params);
  return both;
}

// Queries rounded to int8 move a score by a small part of the scores' range.
void ExpectNearPlain(const BothScores& both, float part_of_range) {
  for (size_t h = 0; h < both.fast.size(); ++h) {
    if (both.plain[h].empty()) continue;
    const auto [low, high] = std::minmax_element(both.plain[h].begin(), both.plain[h].end());
    const float tolerance = part_of_range * std::max(*high - *low, 2.0f);
    for (size_t i = 0; i < both.fast[h].size(); ++i) {
      ASSERT_NEAR(both.fast[h][i], both.plain[h][i], tolerance) << "head " << h << " at " << i;
    }
  }
}

TEST_P(KeySketchTest, ScoresEqualPlainForEveryShape) {
  for (const int bits : {1, 2, 4}) {
    for (const int head_dim : {16, 32, 64, 80, 96, 128}) {
      for (const int block_size : {16, 48, 128}) {
        SCOPED_TRACE(testing::Message() << bits << " bits, " << head_dim << " x " << block_size);
        const SketchCase c({.head_dim = head_dim, .block_size = block_size, .bits = bits}, 1500, 3);
        ExpectNearPlain(ScoreBoth(c, 0, 1500), 0.03f);
      }
    }
  }
}

TEST_P(KeySketchTest, ScoresEqualPlainForEveryGroup) {
  for (const int group_size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64}) {
    SCOPED_TRACE(testing::Message() << "group " << group_size);
    const SketchCase c({.head_dim = 64}, 700, group_size, 1);
    ExpectNearPlain(ScoreBoth(c, 0, 700), 0.03f);
    ExpectNearPlain(ScoreBoth(c, 0, 700, /*with_lse=*/false), 0.03f);
  }
}

TEST_P(KeySketchTest, ScoresEqualPlainForEverySpan) {
  const SketchCase c({.head_dim = 32}, 20000, 2);
  for (const int begin : {0, 1, 16, 127, 128, 9000}) {
    for (const int end : {9001, 9008, 9088, 16383, 20000}) {
      SCOPED_TRACE(testing::Message() << begin << " to " << end);
      ExpectNearPlain(ScoreBoth(c, begin, end), 0.03f);
    }
  }
  ExpectNearPlain(ScoreBoth(c, 5, 5), 0.03f);
}

// Which part of the `count` best tokens of the first head is the same.
double CommonTop(const BothScores& both, int count) {
  const int n = static_cast<int>(both.fast[0].size());
  std::vector<int32_t> fast(count + 16), plain(count + 16), common;
  TopK(both.fast[0].data(), n, count, fast.data());
  TopK(both.plain[0].data(), n, count, plain.data());
  std::set_intersection(fast.begin(), fast.begin() + count, plain.begin(), plain.begin() + count,
                        std::back_inserter(common));
  return static_cast<double>(common.size()) / count;
}

// What selection is about: the same tokens come out on top.
TEST_P(KeySketchTest, TopTokensAreThoseOfPlain) {
  for (const int bits : {1, 2, 4}) {
    const SketchCase c({.head_dim = 64, .bits = bits}, 12800, 3, 8, 1);
    EXPECT_GE(CommonTop(ScoreBoth(c, 0, 12800), 384), 0.98) << bits << " bits";
  }
}

// However many pass, and whatever their number leaves over of what goes at once.
TEST_P(KeySketchTest, CollectPassedCollectsWhatPassed) {
  constexpr int kRoom = 16;  // behind the outputs
  std::mt19937 random(1);
  for (const int num_tiles : {0, 1, 2, 31, 32, 33, 63, 64, 65, 128, 512}) {
    for (const double share : {0.0, 0.03, 0.3, 0.5, 1.0}) {
      SCOPED_TRACE(testing::Message() << share << " of " << num_tiles << " tiles");
      std::vector<float> scores(num_tiles * 16), expected_scores;
      std::vector<uint16_t> passed(num_tiles);
      std::vector<int32_t> positions(num_tiles), expected_positions;
      for (int i = 0; i < num_tiles * 16; ++i) {
        scores[i] = std::normal_distribution<float>()(random);
        if (i % 16 == 0) positions[i / 16] = i * 3;  // with gaps, as between chosen blocks
        if (!std::bernoulli_distribution(share)(random)) continue;
        passed[i / 16] |= 1 << i % 16;
        expected_scores.push_back(scores[i]);
        expected_positions.push_back(positions[i / 16] + i % 16);
      }
      const SketchPass::Scores batch = {.scores = scores.data(),
                                        .passed = passed.data(),
                                        .positions = positions.data(),
                                        .num_tiles = num_tiles};
      const size_t count = expected_scores.size();
      std::vector<float> found(count + kRoom + 1, 77), copied = found;
      std::vector<int32_t> found_positions(count + kRoom + 1, 77);
      ASSERT_EQ(CollectPassed(batch, found.data(), found_positions.data()), count);
      ASSERT_EQ(CopyPassed(batch, copied.data()), count);
      EXPECT_EQ(found.back(), 77);
      EXPECT_EQ(copied.back(), 77);
      EXPECT_EQ(found_positions.back(), 77);
      found.resize(count);
      copied.resize(count);
      found_positions.resize(count);
      EXPECT_EQ(found, expected_scores);
      EXPECT_EQ(copied, expected_scores);
      EXPECT_EQ(found_positions, expected_positions);
    }
  }
}

// One-bit codes have kernels of their own where there is VBMI: they are tested with and without.
class OneBitSketchTest : public KernelTest {
 protected:
  void TearDown() override {
    AllowVbmi(true);
    KernelTest::TearDown();
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, OneBitSketchTest, testing::ValuesIn(RunnableTargets()),
                         TargetTestName);

TEST_P(OneBitSketchTest, VbmiCanBeRuledOut) {
  const bool has_vbmi = HasVbmi();
  AllowVbmi(false);
  EXPECT_FALSE(HasVbmi());
  AllowVbmi(true);
  EXPECT_EQ(HasVbmi(), has_vbmi);
  // Rounded differently, so that equal scores would mean that one kernel made both.
  const SketchCase c({.head_dim = 64, .bits = 1}, 500, 3);
  const BothScores with = ScoreBoth(c, 0, 500);
  AllowVbmi(false);
  const BothScores without = ScoreBoth(c, 0, 500);
  EXPECT_EQ(with.fast != without.fast, has_vbmi && KernelTarget() >= CpuTarget::kAvx512);
}

TEST_P(OneBitSketchTest, ScoresEqualPlainForEveryDimAndGroup) {
  for (const bool vbmi : {true, false}) {
    AllowVbmi(vbmi);
    for (const int head_dim : {16, 32, 64, 80, 96, 128, 192, 256}) {
      for (const int group_size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64}) {
        SCOPED_TRACE(testing::Message() << head_dim << ", group " << group_size << " " << vbmi);
        const SketchCase c({.head_dim = head_dim, .block_size = 48, .bits = 1}, 300, group_size);
        ExpectNearPlain(ScoreBoth(c, 0, 300), 0.03f);
      }
    }
  }
}

TEST_P(OneBitSketchTest, ScoresEqualPlainForEverySpan) {
  const SketchCase c({.head_dim = 64, .bits = 1}, 20000, 3);
  for (const int begin : {0, 1, 16, 127, 128, 9000}) {
    for (const int end : {9001, 9008, 9088, 16383, 20000}) {
      SCOPED_TRACE(testing::Message() << begin << " to " << end);
      ExpectNearPlain(ScoreBoth(c, begin, end), 0.01f);
    }
  }
}

// Sums of four channels reach what a byte holds, from either side; a fault would wrap around.
TEST_P(OneBitSketchTest, QueriesOfEqualChannelsFitTables) {
  SketchCase c({.head_dim = 64, .block_size = 16, .bits = 1}, 160, 1, 3, 1);
  for (const int period : {1, 2, 4, 8, 16, 64}) {
    for (const float sign : {1.0f, -1.0f}) {
      SCOPED_TRACE(testing::Message() << "period " << period << " sign " << sign);
      for (int channel = 0; channel < 64; ++channel) {
        // Of equal product with the scale in the first block, so that all are the largest there.
        const float scale = SketchScale(c.layout, c.sketched[0].record(c.layout, 0), channel);
        c.queries[0][channel] = channel % period == 0 ? sign / scale : 0.0f;
      }
      ExpectNearPlain(ScoreBoth(c, 0, 160), 0.015f);
    }
  }
}

// Keys that lie in a few clusters, and tokens' best heads among several.
TEST_P(OneBitSketchTest, TopTokensOfClusteredKeysAreThoseOfPlain) {
  SketchCase c({.head_dim = 64, .bits = 1}, 12800, 7, 8, 1);
  const std::vector<float> noise = RandomFloats(12800 * 64, 31),
                           centres = RandomFloats(20 * 64, 32);
  for (int b = 0; b < 100; ++b) {
    std::vector<float> keys(128 * 64);
    for (int t = 0; t < 128; ++t) {
      const int cluster = (b * 128 + t) / 50 * 7 % 20;
      for (int i = 0; i < 64; ++i) {
        keys[t * 64 + i] = 2 * centres[cluster * 64 + i] + noise[(b * 128 + t) * 64 + i];
      }
    }
    SketchKeys({.layout = c.layout,
                .keys = keys.data(),
                .dtype = DType::kF32,
                .key_stride_bytes = 64 * sizeof(float),
                .record = const_cast<std::byte*>(c.sketched[0].record(c.layout, b))});
  }
  for (const bool vbmi : {true, false}) {
    AllowVbmi(vbmi);
    EXPECT_GE(CommonTop(ScoreBoth(c, 0, 12800), 384), 0.98) << vbmi;
  }
}

TEST_P(KeySketchTest, HugeAndBrokenQueriesDoNoHarm) {
  for (const int bits : {1, 2, 4}) {
    SketchCase c({.head_dim = 64, .bits = bits}, 256, 3);
    c.queries[0].assign(c.queries[0].size(), 0.0f);
    c.queries[1].assign(c.queries[1].size(), 1e30f);
    BothScores both = ScoreBoth(c, 0, 256);
    for (const float score : both.fast[0]) {
      ASSERT_NEAR(score, -*std::min_element(c.lse[0].begin(), c.lse[0].end()), 1e-5f);
    }
    c.queries[0][5] = NAN;
    c.queries[1][7] = kInf;
    ScoreBoth(c, 0, 256);
  }
}

TEST_P(KeySketchTest, ThreadsDoNotChangeScores) {
  const SketchCase c({.head_dim = 64}, 40000, 3, 8, 1);
  std::vector<float> one(39000), many(39000);
  SketchScoresParams::Head head = {.keys = c.sketched[0],
                                   .queries = c.queries[0].data(),
                                   .begin = 777,
                                   .end = 39777,
                                   .scores = one.data()};
  const SketchScoresParams params = {.layout = c.layout,
                                     .group_size = c.group_size,
                                     .softmax_scale = c.softmax_scale,
                                     .heads = absl::MakeConstSpan(&head, 1)};
  ComputePool one_thread(1);
  SketchScores(params, one_thread);
  head.scores = many.data();
  for (const int num_threads : {2, 3}) {
    ComputePool pool(num_threads);
    SketchScores(params, pool);
    ASSERT_EQ(many, one);
  }
}

}  // namespace
}  // namespace tokenbutler
