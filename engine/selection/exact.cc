#include "engine/selection/exact.h"

#include <cstdint>
#include <vector>

#include "engine/kernels/key_scores.h"
#include "engine/kernels/top_k.h"

namespace tokenbutler {
namespace {

constexpr int kTopKScratch = 16;  // behind TopK's indices

class ExactScanner : public KeyScanner {
 public:
  std::unique_ptr<KeyScanner> Clone() const override {
    return std::make_unique<ExactScanner>(*this);
  }
  void Reserve(const KvLayout&, int, int max_tokens, int max_found) override {
    scores_.reserve(static_cast<size_t>(max_tokens));
    indices_.reserve(static_cast<size_t>(max_found) + kTopKScratch);
  }
  int Prepare(const LayerContext&, int num_written) override { return num_written; }

  int64_t Scan(const LayerContext& context, const float* query, int begin, int end, int count,
               ScanReach, ScoredTokens* found) override {
    const int num_kv_heads = context.layout->num_kv_heads;
    const size_t size = static_cast<size_t>(end - begin);
    scores_.resize(size);
    indices_.resize(static_cast<size_t>(count) + kTopKScratch);
    for (int h = 0; h < num_kv_heads; ++h) {
      Score(context, query, h, begin, end);
      const int num_found = TopK(scores_.data(), end - begin, count, indices_.data());
      for (int i = 0; i < num_found; ++i) {
        found->Add(h, begin + indices_[i], scores_[indices_[i]]);
      }
    }
    return int64_t{num_kv_heads} * (end - begin);
  }

 private:
  // scores_ = the scores of tokens [begin, end).
  void Score(const LayerContext& context, const float* query, int kv_head, int begin, int end) {
    const int first_head = kv_head * context.group_size;
    KeyScores({.query = query + static_cast<size_t>(first_head) * context.layout->head_dim,
               .group_size = context.group_size,
               .blocks = context.blocks.data(),
               .begin = begin,
               .end = end,
               .layout = *context.layout,
               .layer = context.layer,
               .kv_head = kv_head,
               .softmax_scale = context.softmax_scale,
               .lse = context.lse == nullptr ? nullptr : context.lse + first_head,
               .scores = scores_.data()},
              *context.pool);
  }

  std::vector<float> scores_;
  std::vector<int32_t> indices_;
};

}  // namespace

std::unique_ptr<KeyScanner> NewExactScanner() { return std::make_unique<ExactScanner>(); }

}  // namespace tokenbutler
