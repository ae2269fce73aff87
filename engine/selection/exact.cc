#include "engine/selection/exact.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/dtype.h"

namespace tokenbutler {
namespace {

class ExactScanner : public KeyScanner {
 public:
  std::unique_ptr<KeyScanner> Clone() const override {
    return std::make_unique<ExactScanner>(*this);
  }
  int Prepare(const LayerContext&, int num_written) override { return num_written; }

  void Scan(const LayerContext& context, const float* query, int begin, int end, int count,
            ScoredTokens* found) override {
    const int num_kv_heads = context.layout->num_kv_heads;
    const size_t size = static_cast<size_t>(end - begin);
    scores_.resize(num_kv_heads * size);
    for (int h = 0; h < num_kv_heads; ++h) {
      float* scores = scores_.data() + h * size;
      for (int t = begin; t < end; ++t) scores[t - begin] = Score(context, query, h, t);
      std::vector<float> sorted(scores, scores + size);
      std::nth_element(sorted.begin(), sorted.begin() + (count - 1), sorted.end(),
                       std::greater<float>());
      const float threshold = sorted[count - 1];
      int above = 0;
      for (size_t i = 0; i < size; ++i) above += scores[i] > threshold;
      int equal = count - above;
      for (size_t i = 0; i < size; ++i) {
        if (scores[i] > threshold || (scores[i] == threshold && equal-- > 0)) {
          found->Add(h, begin + static_cast<int>(i), scores[i]);
        }
      }
    }
  }

  void Rescore(const LayerContext& context, const float* query, ScoredTokens* candidates) override {
    for (int h = 0; h < context.layout->num_kv_heads; ++h) {
      const size_t at = static_cast<size_t>(h) * candidates->capacity;
      for (int i = 0; i < candidates->counts[h]; ++i) {
        candidates->scores[at + i] = Score(context, query, h, candidates->tokens[at + i]);
      }
    }
  }

 private:
  static float Key(const LayerContext& c, const std::byte* row, int i) {
    switch (c.layout->dtype) {
      case DType::kBF16:
        return ToFloat(reinterpret_cast<const BF16*>(row)[i]);
      case DType::kF16:
        return HalfToFloat(reinterpret_cast<const uint16_t*>(row)[i]);
      default:
        return reinterpret_cast<const float*>(row)[i];
    }
  }
  static float Score(const LayerContext& c, const float* query, int kv_head, int token) {
    const int bs = c.layout->block_size, d = c.layout->head_dim;
    const std::byte* row = c.keys(kv_head, token / bs) + (token % bs) * c.layout->row_bytes();
    float best = -std::numeric_limits<float>::infinity();
    for (int g = 0; g < c.group_size; ++g) {
      const int head = kv_head * c.group_size + g;
      float dot = 0;
      for (int i = 0; i < d; ++i) dot += query[head * d + i] * Key(c, row, i);
      best = std::max(best, c.softmax_scale * dot - (c.lse == nullptr ? 0 : c.lse[head]));
    }
    return best;
  }

  std::vector<float> scores_;
};

}  // namespace

std::unique_ptr<KeyScanner> NewExactScanner() { return std::make_unique<ExactScanner>(); }

}  // namespace tokenbutler
