#include "engine/selection/quest.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/status_details.h"
#include "engine/kernels/page_bounds.h"
#include "engine/kernels/top_k.h"
#include "engine/selection/attended_ranges.h"

namespace tokenbutler {
namespace {

constexpr int kNumDenseLayers = 2;
constexpr int kMinPages = 3;
constexpr int kTopKScratch = 16;

int PagesFor(int num_tokens) { return (num_tokens + kPageTokens - 1) / kPageTokens; }

// Bounds lie in the state records, page by page: [block_size / kPageTokens][2][head_dim].
size_t PageBytes(const KvLayout& layout) {
  return size_t{2} * layout.head_dim * DTypeBytes(PageBoundsDType(layout.dtype));
}

class QuestSelector : public TokenSelector {
 public:
  QuestSelector(const AttentionParams& params, int num_layers)
      : num_pages_(params.token_budget / kPageTokens),
        num_sink_pages_(PagesFor(params.sink_tokens)),
        local_window_(params.local_window),
        num_bounded_(static_cast<size_t>(num_layers)) {}

  std::unique_ptr<TokenSelector> Clone() const override {
    return std::make_unique<QuestSelector>(*this);
  }
  bool IsDenseLayer(int layer) const override { return layer < kNumDenseLayers; }

  void Reserve(const KvLayout& layout, int, int max_tokens) override {
    const size_t kv_heads = static_cast<size_t>(layout.num_kv_heads);
    heads_.reserve(kv_heads);
    scores_.reserve(kv_heads * static_cast<size_t>(PagesFor(max_tokens)));
    pages_.reserve(kv_heads * (static_cast<size_t>(num_pages_) + kTopKScratch));
  }

  void OnPrefill(const LayerContext& context, const PrefillQueries&) override {
    if (!IsDenseLayer(context.layer)) WriteBounds(context);
  }

  void Select(const LayerContext& context, const float* query, TokenSelection* selection) override {
    WriteBounds(context);
    const int last_page = (context.context_len - 1) / kPageTokens;
    ScorePages(context, query, last_page);
    const int num_kv_heads = context.layout->num_kv_heads;
    num_scored_ += int64_t{num_kv_heads} * last_page * kPageTokens;
    // Pages [first, local) are chosen from, all others are attended in any case.
    const int first = std::min(num_sink_pages_, last_page);
    const int local = std::max((context.context_len - local_window_) / kPageTokens, first);
    const int num_fixed = first + last_page + 1 - local;
    const int num_ranked = std::clamp(num_pages_ - num_fixed, 0, local - first);
    selection->Reset(num_kv_heads, num_pages_ * kPageTokens);
    const size_t room = static_cast<size_t>(num_ranked) + kTopKScratch;
    pages_.resize(num_kv_heads * room);
    context.pool->ParallelFor(num_kv_heads, [&](int h) {
      const float* scores = scores_.data() + static_cast<size_t>(h) * last_page;
      int32_t* pages = pages_.data() + h * room;
      const int num_chosen = TopK(scores + first, local - first, num_ranked, pages);
      AddAlways(0, first * kPageTokens, h, selection);
      for (int i = 0; i < num_chosen; ++i) {
        const int page = first + pages[i];
        for (int t = page * kPageTokens; t < (page + 1) * kPageTokens; ++t) {
          selection->Add(h, t, scores[page]);
        }
      }
      AddAlways(local * kPageTokens, context.context_len, h, selection);
    });
  }

  int64_t num_scored() const override { return num_scored_; }

 private:
  // Brings the bounds of the layer's full pages up to date.
  void WriteBounds(const LayerContext& context) {
    int& num_bounded = num_bounded_[context.layer];
    const int begin = num_bounded, end = context.context_len / kPageTokens;
    if (begin >= end) return;
    const KvLayout& layout = *context.layout;
    const int pages_per_block = layout.block_size / kPageTokens;
    const int first_block = begin / pages_per_block;
    const int num_blocks = (end - 1) / pages_per_block + 1 - first_block;
    context.pool->ParallelFor(layout.num_kv_heads * num_blocks, [&](int task) {
      const int kv_head = task / num_blocks;
      const int block = first_block + task % num_blocks;
      const int first = std::max(begin - block * pages_per_block, 0);
      const int last = std::min(end - block * pages_per_block, pages_per_block);
      const KvRows keys = context.keys(kv_head, block, first * kPageTokens);
      PageBounds({.keys = keys.data,
                  .dtype = layout.dtype,
                  .key_scales = keys.scales,
                  .head_dim = layout.head_dim,
                  .num_pages = last - first,
                  .bounds = context.record(kv_head, block) + first * PageBytes(layout)});
    });
    num_bounded = end;
  }

  // scores_ [num_kv_heads, num_pages] of pages [0, num_pages).
  void ScorePages(const LayerContext& context, const float* query, int num_pages) {
    const KvLayout& layout = *context.layout;
    const StateLayout& state = *context.state_layout;
    scores_.resize(static_cast<size_t>(layout.num_kv_heads) * num_pages);
    heads_.clear();
    for (int h = 0; h < layout.num_kv_heads; ++h) {
      heads_.push_back(
          {.runs = context.state_blocks.data(),
           .offset = state.offset(context.layer, h, 0),
           .queries = query + static_cast<size_t>(h) * context.group_size * layout.head_dim,
           .scores = scores_.data() + static_cast<size_t>(h) * num_pages});
    }
    PageScores({.records_per_run = state.kv_blocks(),
                .record_bytes = state.record_bytes,
                .pages_per_record = layout.block_size / kPageTokens,
                .num_pages = num_pages,
                .dtype = PageBoundsDType(layout.dtype),
                .head_dim = layout.head_dim,
                .group_size = context.group_size,
                .heads = heads_},
               *context.pool);
  }

  int num_pages_;  // attended per step
  int num_sink_pages_, local_window_;
  std::vector<int> num_bounded_;  // [num_layers] pages whose bounds are written
  int64_t num_scored_ = 0;
  // Working memory.
  std::vector<PageScoresParams::Head> heads_;
  std::vector<float> scores_;
  std::vector<int32_t> pages_;
};

size_t RecordBytes(const AttentionParams&, const SelectionResources& resources) {
  const KvLayout& layout = resources.layout;
  return layout.block_size / kPageTokens * PageBytes(layout);
}

int LeastBudget(const AttentionParams& params) {
  // A window of w tokens touches at most PagesFor(w - 1) + 1 pages.
  const int num_fixed = PagesFor(params.sink_tokens) + PagesFor(params.local_window - 1) + 1;
  return std::max(kMinPages, num_fixed) * kPageTokens;
}

absl::Status Check(const AttentionParams& params, const SelectionResources& resources) {
  const int least = LeastBudget(params);
  if (params.token_budget < least) {
    return WithField(
        InvalidArgumentError("attention.token_budget is {}, policy \"quest\" needs at least {}: {} "
                             "pages of {} tokens, and those of sink_tokens and local_window",
                             params.token_budget, least, kMinPages, kPageTokens),
        "attention.token_budget");
  }
  const KvLayout& layout = resources.layout;
  if (layout.block_size % kPageTokens == 0 && layout.head_dim <= kMaxPageHeadDim) {
    return absl::OkStatus();
  }
  return WithField(
      InvalidArgumentError("attention.policy \"quest\" needs a block size that is a multiple of {} "
                           "and a head_dim of at most {}; they are {} and {}",
                           kPageTokens, kMaxPageHeadDim, layout.block_size, layout.head_dim),
      "attention.policy");
}

absl::StatusOr<std::unique_ptr<TokenSelector>> Create(const AttentionParams& params,
                                                      const SelectionResources& resources) {
  return std::make_unique<QuestSelector>(params, resources.config->num_layers);
}

}  // namespace

const PolicySpec kQuestPolicy = {.policy = AttentionPolicy::kQuest,
                                 .record_bytes = RecordBytes,
                                 .least_budget = LeastBudget,
                                 .check = Check,
                                 .create = Create};

}  // namespace tokenbutler
