#include "tools/eval/tasks/seeded_random.h"

#include <array>
#include <numeric>

#include "engine/counter_rng.h"

namespace tokenbutler {
namespace {

uint32_t Fnv1a(std::string_view text) {
  uint32_t hash = 0x811c9dc5u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x01000193u;
  return hash;
}

}  // namespace

SeededRandom::SeededRandom(uint64_t seed, std::string_view purpose, uint64_t index)
    : seed_(seed), purpose_(Fnv1a(purpose)), index_(index) {}

uint64_t SeededRandom::Next() {
  const std::array<uint32_t, 4> bits = Philox4x32(
      {drawn_++, static_cast<uint32_t>(index_), static_cast<uint32_t>(index_ >> 32), purpose_},
      seed_);
  return (uint64_t{bits[1]} << 32) | bits[0];
}

int SeededRandom::Below(int bound) {
  // The last, incomplete run of `bound` numbers would favour the small ones.
  const auto range = static_cast<uint64_t>(bound);
  const uint64_t limit = UINT64_MAX - UINT64_MAX % range;
  uint64_t bits = Next();
  while (bits >= limit) bits = Next();
  return static_cast<int>(bits % range);
}

int SeededRandom::Between(int low, int high) { return low + Below(high - low + 1); }

std::vector<int> SeededRandom::Distinct(int count, int bound) {
  std::vector<int> all(bound);
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < count; ++i) std::swap(all[i], all[i + Below(bound - i)]);
  all.resize(count);
  return all;
}

}  // namespace tokenbutler
