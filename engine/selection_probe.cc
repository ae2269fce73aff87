#include "engine/selection_probe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/kernels/key_scores.h"
#include "engine/kernels/top_k.h"
#include "engine/selection/attended_ranges.h"

namespace tokenbutler {
namespace {

constexpr size_t kTopKScratch = 16;  // behind TopK's indices

}  // namespace

SelectionProbe::SelectionProbe(const AttentionParams& params, const SelectionResources& resources)
    : params_(params), resources_(resources), num_layers_(resources.config->num_layers) {}

void SelectionProbe::Reserve(int max_tokens) {
  if (resources_.recall_probe_rate == 0) return;
  const size_t group_size = static_cast<size_t>(resources_.config->group_size());
  scores_.reserve(static_cast<size_t>(max_tokens));
  lse_.resize(group_size);
  workspace_.resize(KeyScoresWorkspaceFloats(static_cast<int>(group_size)));
  chosen_lse_.reserve(static_cast<size_t>(resources_.config->num_heads));
}

void SelectionProbe::Want(const ProbeParams& wanted) {
  wanted_ = wanted;
  found_ = {};
  if (!wanted.any()) return;
  found_.layers.resize(static_cast<size_t>(num_layers_));
  found_.heads.resize(found_.layers.size() * static_cast<size_t>(resources_.config->num_kv_heads));
  best_.resize(static_cast<size_t>(params_.token_budget) + kTopKScratch);
  watched_logits_.resize(wanted.watched.size());
  is_attended_.resize(wanted.watched.size());
}

void SelectionProbe::BeginStep(int position) {
  first_layer_ = (first_layer_ + num_due_) % num_layers_;
  num_due_ = 0;
  if (position < wanted_.from_position) return;
  probes_due_ += resources_.recall_probe_rate;
  num_due_ = std::min(static_cast<int>(probes_due_), num_layers_);
  probes_due_ -= num_due_;
}

void SelectionProbe::BeforeAttention(const LayerContext& context) {
  chosen_lse_.clear();
  if (context.lse == nullptr) return;
  chosen_lse_.assign(context.lse, context.lse + resources_.config->num_heads);
}

void SelectionProbe::AfterAttention(const LayerContext& context, const float* query,
                                    const float* attended_lse, const TokenSelection& selection,
                                    AttentionStats* stats) {
  const int num_kv_heads = context.layout->num_kv_heads;
  const int group_size = context.group_size;
  by_any_.assign(wanted_.watched.size(), 0);
  double recall = 0;
  for (int h = 0; h < num_kv_heads; ++h) {
    const int first_head = h * group_size;
    const float* head_query = query + static_cast<size_t>(first_head) * context.layout->head_dim;
    ScoreAll(context, head_query, h);
    // A head's share of the mass: the sum of exp(logit) over its selection by that over all.
    double mass = 0;
    for (int g = 0; g < group_size; ++g) {
      mass += std::exp(double{attended_lse[first_head + g]} - lse_[g]);
    }
    recall += mass;
    if (found_.heads.empty()) continue;
    HeadProbes& head = found_.heads[static_cast<size_t>(context.layer) * num_kv_heads + h];
    ++head.count;
    head.mass += std::min(1.0, mass / group_size);
    const absl::Span<const int32_t> attended = selection.tokens_of(h);
    AddOverlap(context.context_len, attended, &head);
    AddWatched(context, head_query, h, attended, &head);
  }
  stats->recall_sum += std::min(1.0, recall / resources_.config->num_heads);
  ++stats->recall_probes;
  if (found_.layers.empty()) return;
  LayerProbes& layer = found_.layers[context.layer];
  ++layer.count;
  if (by_any_.empty()) return;
  layer.watched_by_any +=
      std::accumulate(by_any_.begin(), by_any_.end(), 0.0) / static_cast<double>(by_any_.size());
}

void SelectionProbe::ScoreAll(const LayerContext& context, const float* query, int kv_head) {
  scores_.resize(static_cast<size_t>(context.context_len));
  const size_t first_head = static_cast<size_t>(kv_head) * context.group_size;
  KeyScores({.query = query,
             .group_size = context.group_size,
             .blocks = context.blocks.data(),
             .begin = 0,
             .end = context.context_len,
             .layout = *context.layout,
             .layer = context.layer,
             .kv_head = kv_head,
             .softmax_scale = context.softmax_scale,
             .lse = chosen_lse_.empty() ? nullptr : chosen_lse_.data() + first_head,
             .scores = scores_.data(),
             .lse_out = lse_.data(),
             .workspace = workspace_.data()},
            *context.pool);
}

void SelectionProbe::AddOverlap(int context_len, absl::Span<const int32_t> attended,
                                HeadProbes* head) {
  const AttendedRanges ranges =
      AttendedRanges::At(params_, context_len, context_len - params_.local_window);
  if (ranges.num_important == 0) return;
  const int num_best = TopK(scores_.data() + ranges.sink_end, ranges.local_begin - ranges.sink_end,
                            ranges.num_important, best_.data());
  int num_attended = 0;
  auto at = attended.begin();
  for (int i = 0; i < num_best; ++i) {
    at = std::lower_bound(at, attended.end(), best_[i] + ranges.sink_end);
    num_attended += at != attended.end() && *at == best_[i] + ranges.sink_end;
  }
  ++head->choices;
  head->overlap += static_cast<double>(num_attended) / num_best;
}

void SelectionProbe::AddWatched(const LayerContext& context, const float* query, int kv_head,
                                absl::Span<const int32_t> attended, HeadProbes* head) {
  const size_t num_watched = wanted_.watched.size();
  if (num_watched == 0) return;
  for (size_t i = 0; i < num_watched; ++i) {
    is_attended_[i] = std::binary_search(attended.begin(), attended.end(), wanted_.watched[i]);
    by_any_[i] |= is_attended_[i];
  }
  head->watched += std::accumulate(is_attended_.begin(), is_attended_.end(), 0.0) /
                   static_cast<double>(num_watched);
  for (int g = 0; g < context.group_size; ++g) {
    KeyScores({.query = query + static_cast<size_t>(g) * context.layout->head_dim,
               .group_size = 1,
               .blocks = context.blocks.data(),
               .begin = 0,
               .end = static_cast<int>(num_watched),
               .tokens = wanted_.watched.data(),
               .layout = *context.layout,
               .layer = context.layer,
               .kv_head = kv_head,
               .softmax_scale = context.softmax_scale,
               .scores = watched_logits_.data()},
              *context.pool);
    for (size_t i = 0; i < num_watched; ++i) {
      const double mass = std::exp(double{watched_logits_[i]} - lse_[g]) / context.group_size;
      head->watched_mass += mass;
      if (is_attended_[i] != 0) head->attended_watched_mass += mass;
    }
  }
}

}  // namespace tokenbutler
