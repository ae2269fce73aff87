#include "offload/kv_store.h"

#include <cstring>
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
