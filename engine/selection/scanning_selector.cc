#include "engine/selection/scanning_selector.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "engine/kernels/key_scores.h"

namespace tokenbutler {

namespace {

// fn(kv_head) for each, by all threads when there are some.
template <typename Fn>
void ForEachHead(const LayerContext& context, const Fn& fn) {
  const int num_kv_heads = context.layout->num_kv_heads;
  if (context.pool != nullptr) return context.pool->ParallelFor(num_kv_heads, fn);
  for (int h = 0; h < num_kv_heads; ++h) fn(h);
}

}  // namespace

void AddAlways(int begin, int end, int kv_head, TokenSelection* selection) {
  const size_t at = static_cast<size_t>(kv_head) * selection->capacity + selection->counts[kv_head];
  const int count = std::max(0, end - begin);
  std::iota(selection->tokens.begin() + at, selection->tokens.begin() + at + count, begin);
  std::fill_n(selection->scores.begin() + at, count, std::numeric_limits<float>::infinity());
  selection->counts[kv_head] += count;
}

void KeyScanner::Rescore(const LayerContext& context, const float* query,
                         ScoredTokens* candidates) {
  constexpr int kMostTogether = 16;
  std::array<KeyScoresParams, kMostTogether> heads;
  int num_heads = 0;
  for (int h = 0; h < context.layout->num_kv_heads; ++h) {
    const int first_head = h * context.group_size;
    const size_t at = static_cast<size_t>(h) * candidates->capacity;
    heads[num_heads++] = {
        .query = query + static_cast<size_t>(first_head) * context.layout->head_dim,
        .group_size = context.group_size,
        .blocks = context.blocks.data(),
        .begin = 0,
        .end = candidates->counts[h],
        .tokens = candidates->tokens.data() + at,
        .layout = *context.layout,
        .layer = context.layer,
        .kv_head = h,
        .softmax_scale = context.softmax_scale,
        .lse = context.lse == nullptr ? nullptr : context.lse + first_head,
        .scores = candidates->scores.data() + at};
    if (num_heads < kMostTogether && h + 1 < context.layout->num_kv_heads) continue;
    KeyScores(absl::MakeConstSpan(heads.data(), num_heads), *context.pool);
    num_heads = 0;
  }
}

ScanningSelector::ScanningSelector(const AttentionParams& params, int num_layers,
                                   std::unique_ptr<KeyScanner> scanner,
                                   std::unique_ptr<QueryPredictor> predictor,
                                   bool first_layer_is_dense)
    : params_(params),
      scanner_(std::move(scanner)),
      predictor_(std::move(predictor)),
      first_layer_is_dense_(first_layer_is_dense),
      layers_(static_cast<size_t>(num_layers)) {}

int ScanningSelector::MostFound(const AttentionParams& params, int max_tokens) {
  return std::min(std::max(params.candidates, params.token_budget), max_tokens);
}

int64_t ScanningSelector::MostBytes(const AttentionParams& params, int num_layers, int num_kv_heads,
                                    int max_tokens) {
  constexpr int64_t kFoundBytes = sizeof(int32_t) + sizeof(float);
  // What ImportantTokens and CloseCalls work in.
  constexpr int64_t kChosenBytes = 2 * (sizeof(int32_t) + kFoundBytes);
  constexpr int64_t kCallBytes = kFoundBytes + 2 * sizeof(int32_t) + sizeof(uint8_t);
  const int64_t found = MostFound(params, max_tokens) + KeyScanner::kScanScratch;
  const int64_t per_head = num_layers * found * kFoundBytes + params.token_budget * kChosenBytes +
                           (params.candidates > 0 ? found * kCallBytes : 0);
  return num_kv_heads * per_head;
}

std::unique_ptr<TokenSelector> ScanningSelector::Clone() const {
  auto clone = std::make_unique<ScanningSelector>(
      params_, static_cast<int>(layers_.size()), scanner_->Clone(),
      predictor_ == nullptr ? nullptr : predictor_->Clone(), first_layer_is_dense_);
  clone->layers_ = layers_;
  return clone;
}

void ScanningSelector::Reserve(const KvLayout& layout, int group_size, int max_tokens) {
  const int max_found = MostFound(params_, max_tokens);
  scanner_->Reserve(layout, group_size, max_tokens, max_found);
  for (Layer& layer : layers_) {
    layer.kept.Reserve(layout.num_kv_heads, max_found + KeyScanner::kScanScratch);
  }
  if (params_.candidates > 0) {
    close_calls_.Reserve(layout.num_kv_heads, max_found + KeyScanner::kScanScratch);
  }
  important_.resize(static_cast<size_t>(layout.num_kv_heads));
  for (ImportantTokens& important : important_) important.Reserve(params_.token_budget);
}

void ScanningSelector::OnPrefill(const LayerContext& context, const PrefillQueries&) {
  scanner_->Prepare(context, context.context_len);
  layers_[context.layer].num_steps = 0;
  layers_[context.layer].scanned = false;
}

std::optional<ScanReach> ScanningSelector::DueScan(const Layer& layer, int index) const {
  if (!layer.scanned || (layer.num_steps + index) % params_.prediction_interval == 0) {
    return ScanReach::kAll;
  }
  if (params_.scan_fraction < 1) return ScanReach::kBestBlocks;
  return std::nullopt;
}

void ScanningSelector::Scan(const LayerContext& context, int num_written, const float* query,
                            bool is_predicted, ScanReach reach) {
  Layer& layer = layers_[context.layer];
  const int num_scorable = scanner_->Prepare(context, num_written);
  const int window_begin = context.context_len - params_.local_window;
  const AttendedRanges ranges =
      AttendedRanges::At(params_, context.context_len, std::min(window_begin, num_scorable));
  // The local window grows by one token a step until the next scan; what is kept as it is must
  // leave room for that.
  const int steps_kept = params_.scan_fraction < 1 ? 1 : params_.prediction_interval;
  const int num_fixed = ranges.num_important - (steps_kept - 1);
  const int num_candidates = params_.candidates - (params_.token_budget - ranges.num_important);
  const int count = std::clamp(params_.candidates > 0 ? num_candidates : num_fixed, 0,
                               ranges.local_begin - ranges.sink_end);
  layer.local_begin = ranges.local_begin;
  layer.kept.Reset(context.layout->num_kv_heads, count + KeyScanner::kScanScratch);
  if (count > 0 && is_predicted) {
    num_scored_ += scanner_->ScanPredicted(context, query, ranges.sink_end, ranges.local_begin,
                                           count, reach, &layer.kept);
  } else if (count > 0) {
    num_scored_ += scanner_->Scan(context, query, ranges.sink_end, ranges.local_begin, count, reach,
                                  &layer.kept);
  }
  layer.scanned = true;
}

void ScanningSelector::OnHidden(const LayerContext& context, LayerPoint point,
                                const float* residual, const void* normed) {
  if (predictor_ == nullptr || predictor_->point() != point) return;
  const auto [first, last] = predictor_->Consumers(context.layer);
  bool has_begun = false;
  for (int l = first; l < last; ++l) {
    const std::optional<ScanReach> reach = DueScan(layers_[l], l);
    if (!reach) continue;
    if (!has_begun) predictor_->Begin(context, residual, normed);
    has_begun = true;
    const float* query = predictor_->Query(context, l);
    if (query == nullptr) continue;
    LayerContext consumer = context;
    consumer.layer = l;
    consumer.lse = context.lse_of(l);
    // The consumer's row of the newest token is not written yet.
    Scan(consumer, context.context_len - 1, query, /*is_predicted=*/true, *reach);
    layers_[l].scanned_ahead = true;
  }
}

const TokenSelection* ScanningSelector::Early(int layer) const {
  return layers_[layer].scanned_ahead ? &layers_[layer].kept : nullptr;
}

void ScanningSelector::Select(const LayerContext& context, const float* query,
                              TokenSelection* selection) {
  Layer& layer = layers_[context.layer];
  layer.has_new_candidates = false;
  const std::optional<ScanReach> reach = DueScan(layer, context.layer);
  const bool scans_now = !layer.scanned_ahead && reach;
  if (scans_now) {
    Scan(context, context.context_len, query, /*is_predicted=*/false, *reach);
    layer.has_new_candidates = params_.candidates > 0;
  }
  layer.scanned_ahead = false;
  ++layer.num_steps;
  // Neighbours and top_p go by the order of all, and by their scores.
  if (params_.candidates > 0 && scans_now && params_.neighbours == 0 && params_.top_p >= 1) {
    return ChooseByEstimates(context, query, layer, selection);
  }
  if (params_.candidates > 0) scanner_->Rescore(context, query, &layer.kept);
  Choose(context, layer, selection);
}

const TokenSelection* ScanningSelector::NewCandidates(int layer) const {
  return layers_[layer].has_new_candidates ? &layers_[layer].kept : nullptr;
}

void ScanningSelector::ChooseByEstimates(const LayerContext& context, const float* query,
                                         const Layer& layer, TokenSelection* selection) {
  const AttendedRanges ranges = AttendedRanges::At(params_, context.context_len, layer.local_begin);
  const int num_kv_heads = context.layout->num_kv_heads;
  close_calls_.Reset(num_kv_heads, layer.kept.capacity);
  ForEachHead(context, [&](int h) { close_calls_.Find(layer.kept, h, ranges.num_important); });
  scanner_->Rescore(context, query, &close_calls_.open());
  selection->Reset(num_kv_heads, params_.token_budget);
  ForEachHead(context, [&](int h) {
    AddAlways(0, ranges.sink_end, h, selection);
    close_calls_.AddChosen(layer.kept, h, ranges.num_important, selection);
    AddAlways(ranges.local_begin, context.context_len, h, selection);
  });
}

void ScanningSelector::Choose(const LayerContext& context, const Layer& layer,
                              TokenSelection* selection) {
  const AttendedRanges ranges = AttendedRanges::At(params_, context.context_len, layer.local_begin);
  const int num_kv_heads = context.layout->num_kv_heads;
  selection->Reset(num_kv_heads, params_.token_budget);
  important_.resize(static_cast<size_t>(num_kv_heads));
  const auto choose = [&](int h) {
    AddAlways(0, ranges.sink_end, h, selection);
    const ImportantTokens::Choice chosen =
        important_[h].Choose(params_, layer.kept.tokens_of(h), layer.kept.scores_of(h),
                             ranges.num_important, ranges.sink_end, ranges.local_begin);
    selection->AddAll(h, chosen.tokens, chosen.scores);
    AddAlways(ranges.local_begin, context.context_len, h, selection);
  };
  // Ranking many candidates is worth waking the other threads for, copying a list is not.
  if (params_.candidates > 0) {
    ForEachHead(context, choose);
  } else {
    for (int h = 0; h < num_kv_heads; ++h) choose(h);
  }
}

}  // namespace tokenbutler
