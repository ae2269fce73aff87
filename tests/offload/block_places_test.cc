#include "offload/block_places.h"

#include <set>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

// Window, interval and sink around the edges of a block.
TEST(BlockPlacesTest, TheRingAlwaysHoldsWindowIntervalAndABlockOfUnscoredKeys) {
  KvLayout layout;
  for (const int block_size : {1, 4, 16}) {
    layout.block_size = block_size;
    for (const int window : {0, 1, block_size - 1, block_size, block_size + 1, 3 * block_size}) {
      for (const int interval : {1, 2, 16}) {
        for (const int sink : {0, 1, block_size, block_size + 1}) {
          const BlockPlaces places = BlockPlaces::For(
              layout,
              {.sink_tokens = sink, .local_window = window, .prediction_interval = interval});
          for (int num_tokens = 1; num_tokens < 12 * block_size + 40; ++num_tokens) {
            const int newest = (num_tokens - 1) / block_size;
            for (int t = 0; t < num_tokens; ++t) {
              const bool must = t < sink || t >= num_tokens - (window + interval + block_size);
              ASSERT_TRUE(!must || places.holds(t / block_size, newest))
                  << "token " << t << " of " << num_tokens << ", block_size " << block_size
                  << ", window " << window << ", interval " << interval << ", sink " << sink;
            }
            std::set<int> taken;
            for (int b = 0; b <= newest; ++b) {
              if (!places.holds(b, newest)) continue;
              ASSERT_GE(places.place(b), 0);
              ASSERT_LT(places.place(b), places.count());
              ASSERT_TRUE(taken.insert(places.place(b)).second) << "two blocks in one place";
            }
          }
        }
      }
    }
  }
}

TEST(BlockPlacesTest, ABlockNeverMoves) {
  const BlockPlaces places{.num_sink = 2, .num_ring = 3};
  EXPECT_EQ(places.place(0), 0);
  EXPECT_EQ(places.place(1), 1);
  EXPECT_EQ(places.place(2), 2);
  EXPECT_EQ(places.place(4), 4);
  EXPECT_EQ(places.place(5), 2) << "takes the place of block 2";
  EXPECT_TRUE(places.holds(2, 4));
  EXPECT_FALSE(places.holds(2, 5));
  EXPECT_FALSE(places.holds(5, 4)) << "not written yet";
}

}  // namespace
}  // namespace tokenbutler
