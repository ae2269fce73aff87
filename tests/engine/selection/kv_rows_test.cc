#include "engine/selection/kv_rows.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

// Two blocks in reverse order, all rows zero.
struct Cache {
  explicit Cache(DType dtype)
      : layout{.num_layers = 3, .num_kv_heads = 2, .head_dim = 4, .block_size = 4, .dtype = dtype},
        memory(2 * layout.block_bytes()),
        blocks{memory.data() + layout.block_bytes(), memory.data()} {}
  Cache(const Cache&) = delete;

  KvLayout layout;
  std::vector<std::byte> memory;
  std::byte* blocks[2];
};

TEST(KvRowsTest, RowsKeepTheirTypesPrecision) {
  const std::vector<float> key = {1.0f, -2.5f, 0.15625f, 1.0f + 0x1p-20f};
  const std::vector<float> value = {127.0f, -3.0f, 1.0f, 0.0f};  // scale 1
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8}) {
    Cache cache(dtype);
    const KvRow row{&cache.layout, cache.blocks, 2, 1, 6};
    row.Store(key.data(), value.data());
    std::vector<float> back(4);
    row.LoadKey(back.data());
    for (int i = 0; i < 3; ++i) {
      EXPECT_NEAR(back[i], key[i], dtype == DType::kI8 ? 2.5f / 253 : 0.0f) << DTypeName(dtype);
    }
    if (dtype != DType::kI8) {
      EXPECT_EQ(back[3], dtype == DType::kF32 ? key[3] : 1.0f);
    }
    row.LoadValue(back.data());
    EXPECT_EQ(back, value) << DTypeName(dtype);
  }
}

TEST(KvRowsTest, CopiesAreTheSameAndTouchNothingElse) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    Cache from(dtype), to(dtype);
    const std::vector<float> key = {1, 2, 3, 4}, value = {-9, 5, 0.5f, 2};
    const KvRow source{&from.layout, from.blocks, 1, 0, 3};
    source.Store(key.data(), value.data());
    KvRow{&to.layout, to.blocks, 1, 0, 3}.CopyFrom(source);
    EXPECT_EQ(to.memory, from.memory) << DTypeName(dtype);
  }
}

TEST(KvRowsTest, RowsAreWhereTheLayoutSays) {
  for (const DType dtype : {DType::kF32, DType::kI8}) {
    Cache cache(dtype), one(dtype);
    const KvLayout& layout = cache.layout;
    const std::vector<float> key = {127, 1, 2, 3}, value = {254, 4, 6, 8};
    KvRow{&layout, cache.blocks, 2, 1, 6}.Store(key.data(), value.data());
    std::byte* block = one.blocks[1];
    StoreKvRow(key.data(), value.data(), layout,
               {.key = block + layout.key_offset(2, 1) + 2 * layout.row_bytes(),
                .value = block + layout.value_offset(2, 1) + 2 * layout.row_bytes(),
                .scales = dtype == DType::kF32
                              ? nullptr
                              : reinterpret_cast<float*>(block + layout.scale_offset(2, 1)) + 4});
    EXPECT_EQ(cache.memory, one.memory) << DTypeName(dtype);
  }
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
