#include "engine/counter_rng.h"

#include <set>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

// Known answers published with the generator (Random123's kat_vectors, philox4x32 10 rounds).
TEST(CounterRngTest, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CounterRngTest, UniformNumbersAreInRangeAndDiffer) {
  std::set<double> seen;
  double sum = 0;
  for (uint64_t step = 0; step < 10000; ++step) {
    for (uint32_t index = 0; index < 3; ++index) {
      const double u = UniformAt(42, index, step);
      ASSERT_GE(u, 0);
      ASSERT_LT(u, 1);
      seen.insert(u);
      sum += u;
    }
  }
  EXPECT_EQ(seen.size(), 30000u);
  EXPECT_NEAR(sum / 30000, 0.5, 0.01);
}

}  // namespace
}  // namespace tokenbutler
