#include "engine/selection/kv_rows.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

TEST(KvRowsTest, RowsKeepTheirTypesPrecision) {
  const std::vector<float> values = {1.0f, -2.5f, 0.15625f, 1.0f + 0x1p-20f};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const KvLayout layout{
        .num_layers = 1, .num_kv_heads = 1, .head_dim = 4, .block_size = 16, .dtype = dtype};
    std::vector<std::byte> row(layout.row_bytes());
    std::vector<float> back(4);
    StoreRow(values.data(), layout, row.data());
    LoadRow(row.data(), layout, back.data());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(back[i], values[i]);
    EXPECT_EQ(back[3], dtype == DType::kF32 ? values[3] : 1.0f);
  }
}

TEST(KvRowsTest, RowsAreWhereTheLayoutSays) {
  const KvLayout layout{.num_layers = 3, .num_kv_heads = 2, .head_dim = 8, .block_size = 4};
  std::vector<std::byte> memory(2 * layout.block_bytes());
  std::byte* const blocks[] = {memory.data() + layout.block_bytes(), memory.data()};
  const KvRow row{&layout, blocks, 2, 1, 6};
  EXPECT_EQ(row.key(), memory.data() + layout.key_offset(2, 1) + 2 * layout.row_bytes());
  EXPECT_EQ(row.value(), memory.data() + layout.value_offset(2, 1) + 2 * layout.row_bytes());
}

// YaRN's attention factor is part of the rotation, and taken out again.
TEST(KvRowsTest, RotatingBackUndoesTheRotation) {
  RopeConfig config;
  config.scaling = RopeConfig::Scaling::kYarn;
  config.factor = 4;
  config.original_max_position = 128;
  const Rope rope = *Rope::Create(config, 8, 512);
  ASSERT_GT(rope.attention_factor(), 1.0f);
  std::vector<float> cos_sin(8);
  rope.Rotation(77, cos_sin.data(), cos_sin.data() + 4);
  const std::vector<float> original = {1, 2, -3, 4, 5, -6, 7, 8};
  std::vector<float> x = original;
  Rotate(cos_sin.data(), rope, x.data());
  EXPECT_NEAR(x[3],
              rope.attention_factor() * (4 * std::cos(77 * rope.inverse_frequencies()[3]) -
                                         8 * std::sin(77 * rope.inverse_frequencies()[3])),
              1e-5);
  RotateBack(cos_sin.data(), rope, x.data());
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(x[i], original[i], 1e-5);
}

}  // namespace
}  // namespace tokenbutler
