#include "engine/weights/dequantise.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

// One file of tools/golden/make_dequant_goldens.py: stored bytes, then float32 values.
struct Golden {
  std::vector<std::byte> stored;
  std::vector<float> values;
};

Golden ReadGolden(const GgmlTypeTraits& traits) {
  const std::string path =
      std::string(TOKENBUTLER_TEST_DATA "/dequant/") + std::string(traits.name) + ".bin";
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  EXPECT_FALSE(bytes.empty()) << path;
  const size_t block = traits.block_bytes + traits.block_elements * sizeof(float);
  EXPECT_EQ(bytes.size() % block, 0u) << path;
  const size_t blocks = bytes.size() / block;
  Golden golden;
  golden.stored.resize(blocks * traits.block_bytes);
  golden.values.resize(blocks * traits.block_elements);
  if (bytes.empty()) return golden;
  std::memcpy(golden.stored.data(), bytes.data(), golden.stored.size());
  std::memcpy(golden.values.data(), bytes.data() + golden.stored.size(),
              golden.values.size() * sizeof(float));
  return golden;
}

class DequantiseTest : public testing::TestWithParam<GgmlType> {};

TEST_P(DequantiseTest, Float32EqualsThePythonPackageBitForBit) {
  const Golden golden = ReadGolden(TraitsOf(GetParam()));
  ASSERT_GE(golden.values.size(), 128u);
  std::vector<float> got(golden.values.size(), -1.0f);
  Dequantise(GetParam(), golden.stored.data(), static_cast<int64_t>(got.size()), got.data());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(golden.values[i]))
        << "element " << i << ": " << got[i] << " against " << golden.values[i];
  }
}

TEST_P(DequantiseTest, Bf16IsTheRoundedFloat32) {
  const Golden golden = ReadGolden(TraitsOf(GetParam()));
  std::vector<BF16> got(golden.values.size());
  Dequantise(GetParam(), golden.stored.data(), static_cast<int64_t>(got.size()), got.data());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].bits, ToBF16(golden.values[i]).bits) << "element " << i;
  }
}

TEST_P(DequantiseTest, AnyRunOfBlocksCanBeExpandedByItselfAtAnyAlignment) {
  const GgmlTypeTraits& traits = TraitsOf(GetParam());
  const Golden golden = ReadGolden(traits);
  std::vector<std::byte> shifted(golden.stored.size() + 1);
  std::memcpy(shifted.data() + 1, golden.stored.data(), golden.stored.size());
  std::vector<float> got(traits.block_elements, -1.0f);
  for (size_t block = 0; block < golden.values.size() / traits.block_elements; ++block) {
    Dequantise(GetParam(), shifted.data() + 1 + block * traits.block_bytes, traits.block_elements,
               got.data());
    ASSERT_EQ(std::memcmp(got.data(), golden.values.data() + block * traits.block_elements,
                          got.size() * sizeof(float)),
              0)
        << "block " << block;
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, DequantiseTest,
                         testing::Values(GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ4_0,
                                         GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
                                         GgmlType::kQ8_0, GgmlType::kQ2_K, GgmlType::kQ3_K,
                                         GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K),
                         [](const auto& info) { return std::string(TraitsOf(info.param).name); });

TEST(DequantiseF32Test, IsACopyOrTheRoundedValue) {
  const std::vector<float> values = {0.0f, -0.0f, 1.0f + 0x1p-8f, 1e-40f, 3.4e38f, -INFINITY};
  const auto* stored = reinterpret_cast<const std::byte*>(values.data());
  std::vector<float> same(values.size());
  Dequantise(GgmlType::kF32, stored, 6, same.data());
  EXPECT_EQ(std::memcmp(same.data(), values.data(), sizeof(float) * 6), 0);
  std::vector<BF16> rounded(values.size());
  Dequantise(GgmlType::kF32, stored, 6, rounded.data());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(rounded[i].bits, ToBF16(values[i]).bits);
}

TEST(DequantiseF16Test, EveryHalfIsExact) {
  std::vector<uint16_t> halves(65536);
  for (uint32_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> got(halves.size());
  Dequantise(GgmlType::kF16, reinterpret_cast<const std::byte*>(halves.data()), 65536, got.data());
  for (uint32_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(HalfToFloat(halves[i])))
        << i;
  }
}

TEST(DequantiseQ8KTest, ScalesSignedBytesByItsFloat32) {
  std::vector<std::byte> block(292);
  const float d = 0.25f;
  std::memcpy(block.data(), &d, sizeof(d));
  for (int i = 0; i < 256; ++i) block[4 + i] = static_cast<std::byte>(i);
  std::vector<float> got(256);
  Dequantise(GgmlType::kQ8_K, block.data(), 256, got.data());
  for (int i = 0; i < 256; ++i) ASSERT_EQ(got[i], 0.25f * static_cast<int8_t>(i)) << i;
}

}  // namespace
}  // namespace tokenbutler
