#include "engine/counter_rng.h"

namespace tokenbutler {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, uint64_t key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {
        static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9;  // Weyl sequence: golden ratio and sqrt(3) - 1
    key1 += 0xBB67AE85;
  }
  return counter;
}

double UniformAt(uint64_t seed, uint32_t index, uint64_t step) {
  const std::array<uint32_t, 4> bits =
      Philox4x32({static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32), index, 0}, seed);
  const uint64_t word = (uint64_t{bits[1]} << 32) | bits[0];
  return static_cast<double>(word >> 11) * 0x1.0p-53;
}

}  // namespace tokenbutler
