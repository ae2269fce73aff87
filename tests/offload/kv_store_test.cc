#include "offload/kv_store.h"

#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/host_tier.h"

namespace tokenbutler {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

KvLayout SmallLayout() {
  KvLayout layout;
  layout.num_layers = 2;
  layout.num_kv_heads = 3;
  layout.head_dim = 5;
  layout.block_size = 4;
  layout.dtype = DType::kF32;
  return layout;
}

TEST(HostTierTest, RefusesACapacityBelowOneBlockNamingBoth) {
  const auto tier = HostTier::Create(SmallLayout(), {.capacity_bytes = 100});
  EXPECT_EQ(tier.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(tier.status().message()), AllOf(HasSubstr("100"), HasSubstr("960")));
}

TEST(HostTierTest, RefusesALayoutWithoutBytes) {
  EXPECT_EQ(HostTier::Create(KvLayout{}, {.capacity_bytes = 1 << 20}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(HostTierTest, BlocksAreAlignedDisjointAndSpreadOverTheRegions) {
  const KvLayout layout = SmallLayout();
  ASSERT_EQ(layout.block_bytes(), 960);
  const auto tier = HostTier::Create(
      layout, {.capacity_bytes = 10 * 960 + 959, .max_region_bytes = 3 * 960, .prefault = true});
  ASSERT_TRUE(tier.ok()) << tier.status();
  EXPECT_EQ(tier->num_blocks(), 10);
  EXPECT_EQ(tier->num_regions(), 4);
  EXPECT_EQ(tier->capacity_bytes(), 9600);
  std::set<std::byte*> starts;
  for (BlockId block = 0; block < tier->num_blocks(); ++block) {
    std::byte* start = tier->block(block);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(start) % 64, 0);
    EXPECT_TRUE(starts.insert(start).second);
    std::memset(start, block, layout.block_bytes());
  }
  for (BlockId block = 0; block < tier->num_blocks(); ++block) {
    for (size_t i = 0; i < layout.block_bytes(); ++i) {
      ASSERT_EQ(tier->block(block)[i], static_cast<std::byte>(block)) << block << "[" << i << "]";
    }
  }
}

TEST(HostTierTest, PlacesItsPagesWhereverTheMachineHasNodes) {
  const auto tier = HostTier::Create(SmallLayout(), {.capacity_bytes = 10 * 960,
                                                     .max_region_bytes = 3 * 960,
                                                     .prefault = true,
                                                     .numa = NumaPlacement::kInterleave});
  ASSERT_TRUE(tier.ok()) << tier.status();
  for (BlockId block = 0; block < tier->num_blocks(); ++block) {
    std::memset(tier->block(block), block, 960);
  }
  EXPECT_EQ(tier->block(9)[959], std::byte{9});
}

TEST(HostTierTest, DefaultCapacityIsAShareOfWhatIsLeft) {
  EXPECT_EQ(DefaultKvCapacityBytes(
                {.limit_bytes = 1000, .used_bytes = 100, .reserve_bytes = 400, .fraction = 0.5}),
            250);
  EXPECT_EQ(DefaultKvCapacityBytes({.limit_bytes = 100, .used_bytes = 200, .reserve_bytes = 0}), 0);
}

TEST(KvStoreTest, RowsOfEveryTokenLayerAndHeadAreDisjointAndWhereTheLayoutSays) {
  const KvLayout layout = SmallLayout();
  auto store = KvStore::Create(layout, {.capacity_bytes = 8 * 960, .max_region_bytes = 2 * 960});
  ASSERT_TRUE(store.ok()) << store.status();
  BlockTable table;
  table.blocks = {6, 1, 3};
  const int tokens = 11;
  std::vector<std::byte*> bases;
  (*store)->BlockBases(table, tokens, &bases);
  ASSERT_EQ(bases.size(), 3);
  std::set<std::byte*> rows;
  for (int t = 0; t < tokens; ++t) {
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        std::byte* key = (*store)->key_row(table, layer, head, t);
        std::byte* value = (*store)->value_row(table, layer, head, t);
        const size_t row = static_cast<size_t>(t % 4) * layout.row_bytes();
        EXPECT_EQ(key, bases[t / 4] + layout.key_offset(layer, head) + row);
        EXPECT_EQ(value, bases[t / 4] + layout.value_offset(layer, head) + row);
        EXPECT_TRUE(rows.insert(key).second);
        EXPECT_TRUE(rows.insert(value).second);
        EXPECT_LE(key + layout.row_bytes(), bases[t / 4] + layout.block_bytes());
        EXPECT_LE(value + layout.row_bytes(), bases[t / 4] + layout.block_bytes());
      }
    }
  }
  (*store)->BlockBases(table, 4, &bases);
  EXPECT_EQ(bases.size(), 1) << "only the blocks that hold the asked tokens";
}

TEST(KvLayoutTest, ScalesOfInt8RowsFollowTheRowsOfTheirHeadOnCacheLinesOfTheirOwn) {
  for (const int head_dim : {5, 64}) {
    for (const int block_size : {1, 4, 20, 128}) {
      KvLayout layout = SmallLayout();
      layout.head_dim = head_dim;
      layout.block_size = block_size;
      layout.dtype = DType::kI8;
      EXPECT_EQ(layout.token_row_bytes(), 2 * (head_dim + sizeof(float)));
      EXPECT_EQ(layout.token_bytes(), 2 * layout.num_kv_heads * layout.token_row_bytes());
      size_t end = 0;
      for (int layer = 0; layer < layout.num_layers; ++layer) {
        for (int head = 0; head < layout.num_kv_heads; ++head) {
          EXPECT_EQ(layout.key_offset(layer, head), (end + 63) / 64 * 64);
          const size_t values = layout.value_offset(layer, head);
          EXPECT_EQ(values, layout.key_offset(layer, head) + block_size * layout.row_bytes());
          const size_t scales = layout.scale_offset(layer, head);
          EXPECT_EQ(scales, (values + block_size * layout.row_bytes() + 63) / 64 * 64);
          end = scales + block_size * 2 * sizeof(float);
        }
      }
      EXPECT_EQ(layout.block_bytes(), (end + 63) / 64 * 64);
    }
  }
}

TEST(KvLayoutTest, RowsWithoutScalesFillTheBlock) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    KvLayout layout = SmallLayout();
    layout.dtype = dtype;
    EXPECT_EQ(layout.token_scale_bytes(), 0);
    EXPECT_EQ(layout.block_bytes(), layout.block_size * layout.token_bytes());
    EXPECT_EQ(layout.token_bytes(), 2 * 3 * 2 * layout.row_bytes());
  }
}

// Every byte of every block, in memory's order, exactly once.
TEST(HostTierTest, BlocksOfAGroupShareNothingAndLeaveNoGapBetweenLanes) {
  KvLayout layout = SmallLayout();
  layout.head_dim = 16;
  layout.group_blocks = 4;
  ASSERT_EQ(layout.head_bytes() % 64, 0);
  const auto block_bytes = static_cast<int64_t>(layout.block_bytes());
  // A region holds whole groups, the last one of the third lacks a block.
  const auto tier = HostTier::Create(
      layout, {.capacity_bytes = 19 * block_bytes + 5, .max_region_bytes = 9 * block_bytes});
  ASSERT_TRUE(tier.ok()) << tier.status();
  EXPECT_EQ(tier->num_blocks(), 19);
  EXPECT_EQ(tier->num_regions(), 3);
  EXPECT_EQ(tier->capacity_bytes(), 19 * block_bytes);
  std::set<std::byte*> lanes;
  for (BlockId block = 0; block < 19; ++block) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tier->block(block)) % 64, 0);
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        std::byte* lane = tier->block(block) + layout.key_offset(layer, head);
        EXPECT_TRUE(lanes.insert(lane).second);
        std::memset(lane, block, layout.head_bytes());
        if (block % 4 > 0) {
          EXPECT_EQ(lane - layout.head_bytes(),
                    tier->block(block - 1) + layout.key_offset(layer, head));
        }
      }
    }
  }
  for (auto lane = lanes.begin(); std::next(lane) != lanes.end(); ++lane) {
    EXPECT_GE(*std::next(lane) - *lane, layout.head_bytes());
  }
  // 16 blocks of two regions leave no gap; 3 of a group of four leave one of a lane.
  EXPECT_EQ(tier->block(4) - tier->block(0), 4 * block_bytes);
  EXPECT_EQ(layout.blocks_bytes(3), 4 * block_bytes);
  EXPECT_EQ(layout.blocks_bytes(5), 8 * block_bytes);
  for (BlockId block = 0; block < 19; ++block) {
    for (int lane = 0; lane < layout.num_lanes(); ++lane) {
      const std::byte* at = tier->block(block) + lane * layout.lane_stride();
      for (size_t i = 0; i < layout.head_bytes(); ++i) {
        ASSERT_EQ(at[i], static_cast<std::byte>(block)) << block << " lane " << lane;
      }
    }
  }
}

TEST(KvStoreTest, GroupsBlocksOnlyWhereLanesAreAlignedAndLittleIsLost) {
  KvLayout layout = SmallLayout();
  const auto group_of = [&](int num_blocks, const std::optional<KvStore::StagedOptions>& staged) {
    const auto capacity = static_cast<int64_t>(layout.block_bytes()) * num_blocks;
    const auto store = KvStore::Create(layout, {.capacity_bytes = capacity}, staged);
    EXPECT_TRUE(store.ok()) << store.status();
    EXPECT_EQ((*store)->num_blocks(), num_blocks);
    return (*store)->layout().group_blocks;
  };
  EXPECT_EQ(group_of(1000, std::nullopt), 1) << "a head has " << layout.head_bytes() << " bytes";
  layout.head_dim = 16;
  EXPECT_EQ(group_of(1, std::nullopt), 1);
  EXPECT_EQ(group_of(31, std::nullopt), 1);
  EXPECT_EQ(group_of(32, std::nullopt), 2);
  EXPECT_EQ(group_of(255, std::nullopt), 8);
  EXPECT_EQ(group_of(256, std::nullopt), 16);
  EXPECT_EQ(group_of(100000, std::nullopt), 16);
  EXPECT_EQ(group_of(1000, KvStore::StagedOptions{.device_capacity_bytes = 1 << 20}), 1)
      << "copies to the device take whole blocks";
}

TEST(KvStoreTest, RefusesALayoutWithoutBytes) {
  for (int KvLayout::*field : {&KvLayout::num_layers, &KvLayout::num_kv_heads, &KvLayout::head_dim,
                               &KvLayout::block_size}) {
    KvLayout layout = SmallLayout();
    layout.head_dim = 16;
    layout.*field = 0;
    EXPECT_EQ(KvStore::Create(layout, {.capacity_bytes = 1 << 20}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(KvStoreTest, BlocksOfAGroupAreReadWrittenAndCopiedWhole) {
  KvLayout layout = SmallLayout();
  layout.head_dim = 16;
  const size_t size = layout.block_bytes();
  auto store = KvStore::Create(layout, {.capacity_bytes = static_cast<int64_t>(70 * size)});
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_EQ((*store)->layout().group_blocks, 4);
  const auto bytes_of = [&](int seed) {
    std::vector<std::byte> bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256 + seed);
    return bytes;
  };
  const auto read = [&](BlockId block) {
    std::vector<std::byte> bytes(size);
    (*store)->ReadBlock(block, absl::MakeSpan(bytes));
    return bytes;
  };
  for (BlockId block = 0; block < 70; ++block) (*store)->WriteBlock(bytes_of(block), block);
  (*store)->CopyBlock(6, 9);
  for (BlockId block = 0; block < 70; ++block) {
    EXPECT_EQ(read(block), bytes_of(block == 9 ? 6 : block)) << block;
  }
  // Rows are where a block of one piece has them.
  BlockTable table;
  table.blocks = {9, 2};
  const KvLayout whole = layout;  // in no groups
  const std::byte* row = (*store)->value_row(table, 1, 2, layout.block_size + 3);
  const std::vector<std::byte> expected = bytes_of(2);
  EXPECT_EQ(std::memcmp(row, expected.data() + whole.value_offset(1, 2) + 3 * layout.row_bytes(),
                        layout.row_bytes()),
            0);
}

TEST(KvStoreTest, CopyBlockCopiesEveryRowAndNothingElse) {
  const KvLayout layout = SmallLayout();
  auto store = KvStore::Create(layout, {.capacity_bytes = 3 * 960});
  ASSERT_TRUE(store.ok()) << store.status();
  for (BlockId block = 0; block < 3; ++block) {
    std::memset((*store)->block(block), 10 + block, layout.block_bytes());
  }
  (*store)->CopyBlock(0, 2);
  EXPECT_EQ(std::memcmp((*store)->block(0), (*store)->block(2), layout.block_bytes()), 0);
  EXPECT_EQ((*store)->block(1)[0], std::byte{11});
  EXPECT_EQ((*store)->block(1)[959], std::byte{11});
}

}  // namespace
}  // namespace tokenbutler
