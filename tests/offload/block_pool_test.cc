#include "offload/block_pool.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

TEST(BlockPoolTest, AllocatesAllOrNothing) {
  BlockPool pool(KvLayout{}, 4);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool.Allocate(3, &blocks));
  EXPECT_FALSE(pool.Allocate(2, &blocks));
  EXPECT_EQ(blocks.size(), 3);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_TRUE(pool.Allocate(0, &blocks));
  EXPECT_EQ(blocks.size(), 3);
}

TEST(BlockPoolTest, ASharedBlockIsFreeOnlyAfterItsLastOwner) {
  BlockPool pool(KvLayout{}, 2);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool.Allocate(2, &blocks));
  pool.Share({blocks[0]});
  pool.Release(blocks);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_owners(blocks[0]), 1);
  pool.Release({blocks[0]});
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(BlockPoolTest, HighWaterRemembersTheMostInUse) {
  BlockPool pool(KvLayout{}, 8);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool.Allocate(5, &blocks));
  pool.Release(blocks);
  blocks.clear();
  ASSERT_TRUE(pool.Allocate(2, &blocks));
  EXPECT_EQ(pool.high_water(), 5);
  EXPECT_EQ(pool.num_used(), 2);
}

// Random sequences of allocations, forks and releases against a map of who holds what.
class BlockPoolRandomTest : public testing::TestWithParam<int> {};

TEST_P(BlockPoolRandomTest, AgreesWithAModelNoLeakNoDoubleUse) {
  constexpr int kBlocks = 37;
  std::mt19937 random(GetParam());
  BlockPool pool(KvLayout{}, kBlocks);
  std::vector<std::vector<BlockId>> holders;
  std::map<BlockId, int> owners;  // the model
  const auto drop = [&](size_t holder) {
    pool.Release(holders[holder]);
    for (const BlockId block : holders[holder]) {
      if (--owners[block] == 0) owners.erase(block);
    }
    holders.erase(holders.begin() + static_cast<ptrdiff_t>(holder));
  };
  for (int step = 0; step < 5000; ++step) {
    switch (random() % 3) {
      case 0: {
        const int count = static_cast<int>(random() % 9);
        std::vector<BlockId> blocks;
        const bool fits = count <= kBlocks - static_cast<int>(owners.size());
        ASSERT_EQ(pool.Allocate(count, &blocks), fits);
        ASSERT_EQ(blocks.size(), fits ? count : 0);
        for (const BlockId block : blocks) {
          ASSERT_TRUE(block >= 0 && block < kBlocks);
          ASSERT_TRUE(owners.emplace(block, 1).second) << "block " << block << " was in use";
        }
        if (fits) holders.push_back(blocks);
        break;
      }
      case 1:
        if (!holders.empty()) {
          const auto& source = holders[random() % holders.size()];
          std::vector<BlockId> prefix(source.begin(),
                                      source.begin() + random() % (source.size() + 1));
          pool.Share(prefix);
          for (const BlockId block : prefix) ++owners[block];
          holders.push_back(prefix);
        }
        break;
      default:
        if (!holders.empty()) drop(random() % holders.size());
    }
    ASSERT_EQ(pool.num_used(), owners.size());
    for (BlockId block = 0; block < kBlocks; ++block) {
      const auto it = owners.find(block);
      ASSERT_EQ(pool.num_owners(block), it == owners.end() ? 0 : it->second);
    }
  }
  while (!holders.empty()) drop(holders.size() - 1);
  EXPECT_EQ(pool.num_free(), kBlocks);
  std::vector<BlockId> all;
  ASSERT_TRUE(pool.Allocate(kBlocks, &all));
  std::sort(all.begin(), all.end());
  for (BlockId block = 0; block < kBlocks; ++block) EXPECT_EQ(all[block], block);
}

INSTANTIATE_TEST_SUITE_P(Seeds, BlockPoolRandomTest, testing::Range(0, 20));

}  // namespace
}  // namespace tokenbutler
