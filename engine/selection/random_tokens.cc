#include "engine/selection/random_tokens.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tokenbutler {
namespace {

// A mix of 64 bits in which every input bit reaches every output bit (the finaliser of
// MurmurHash3, public domain).
uint64_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

class RandomScanner : public KeyScanner {
 public:
  std::unique_ptr<KeyScanner> Clone() const override {
    return std::make_unique<RandomScanner>(*this);
  }
  int Prepare(const LayerContext&, int num_written) override { return num_written; }

  int64_t Scan(const LayerContext& context, const float*, int begin, int end, int count, ScanReach,
               ScoredTokens* found) override {
    for (int h = 0; h < context.layout->num_kv_heads; ++h) {
      // Selection sampling (Knuth, The Art of Computer Programming 3.4.2, algorithm S): each of the
      // remaining tokens is taken with the probability that fills the list.
      int wanted = count;
      for (int t = begin; t < end && wanted > 0; ++t) {
        const double draw = Score(context, h, t);
        if (draw * (end - t) >= wanted) continue;
        found->Add(h, t, static_cast<float>(draw));
        --wanted;
      }
    }
    return 0;  // chance looks at nothing
  }
  void Rescore(const LayerContext& context, const float*, ScoredTokens* candidates) override {
    for (int h = 0; h < context.layout->num_kv_heads; ++h) {
      const size_t at = static_cast<size_t>(h) * candidates->capacity;
      for (int i = 0; i < candidates->counts[h]; ++i) {
        candidates->scores[at + i] =
            static_cast<float>(Score(context, h, candidates->tokens[at + i]));
      }
    }
  }

 private:
  // In [0, 1).
  static double Score(const LayerContext& context, int kv_head, int token) {
    const uint64_t place = Mix(static_cast<uint64_t>(context.context_len)) ^
                           Mix((static_cast<uint64_t>(context.layer) << 32) + kv_head + 1);
    return static_cast<double>(Mix(place + static_cast<uint64_t>(token)) >> 11) * 0x1p-53;
  }
};

}  // namespace

std::unique_ptr<KeyScanner> NewRandomScanner() { return std::make_unique<RandomScanner>(); }

}  // namespace tokenbutler
