#include "engine/sequence_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/time/clock.h"

namespace tokenbutler {

absl::StatusOr<std::unique_ptr<SequenceAttention>> SequenceAttention::Create(
    const AttentionParams& params, const SelectionResources& resources, const KvStore& store,
    std::unique_ptr<TokenSelector> selector, int max_tokens, int num_forks) {
  ASSIGN_OR_RETURN(std::unique_ptr<ResidentTokens> resident,
                   store.NewResidentTokens({.token_budget = params.token_budget,
                                            .candidates = params.candidates,
                                            .sink_tokens = params.sink_tokens,
                                            .local_window = params.local_window,
                                            .prediction_interval = params.prediction_interval,
                                            .num_forks = num_forks}));
  return std::unique_ptr<SequenceAttention>(new SequenceAttention(
      params, resources, store, std::move(selector), std::move(resident), max_tokens));
}

std::unique_ptr<SequenceAttention> SequenceAttention::CreateOnHost(
    const AttentionParams& params, const SelectionResources& resources, const KvStore& store,
    std::unique_ptr<TokenSelector> selector) {
  return std::unique_ptr<SequenceAttention>(
      new SequenceAttention(params, resources, store, std::move(selector), store.NewHostTokens(),
                            /*max_tokens=*/0));
}

absl::StatusOr<std::unique_ptr<SequenceAttention>> SequenceAttention::Continue(
    int max_tokens, int num_forks) const {
  return Create(params_, resources_, store_, selector_->Clone(), max_tokens, num_forks);
}

SequenceAttention::SequenceAttention(const AttentionParams& params,
                                     const SelectionResources& resources, const KvStore& store,
                                     std::unique_ptr<TokenSelector> selector,
                                     std::unique_ptr<ResidentTokens> resident, int max_tokens)
    : params_(params),
      resources_(resources),
      store_(store),
      state_layout_(StateLayoutFor(params, resources)),
      num_heads_(resources.config->num_heads),
      max_tokens_(max_tokens),
      selector_(std::move(selector)),
      resident_(std::move(resident)),
      lse_(static_cast<size_t>(resources.config->num_layers) * num_heads_),
      has_lse_(static_cast<size_t>(resources.config->num_layers)),
      prefetched_(has_lse_.size()),
      probe_(params, resources),
      scored_before_(selector_->num_scored()) {
  transfers_.reserve(2 * has_lse_.size());
  if (max_tokens > 0) Reserve();
}

void SequenceAttention::Reserve() {
  const KvLayout& layout = store_.layout();
  const size_t num_heads = static_cast<size_t>(num_heads_);
  const size_t head_dim = static_cast<size_t>(layout.head_dim);
  selector_->Reserve(layout, resources_.config->group_size(), max_tokens_);
  selection_.Reserve(layout.num_kv_heads, params_.token_budget);
  if (selector_->WantsWeights()) {
    weights_.reserve(num_heads * static_cast<size_t>(params_.token_budget));
    weight_rows_.reserve(num_heads);
  }
  sink_query_.reserve(num_heads * head_dim);
  rotation_.reserve(head_dim);
  probe_.Reserve(max_tokens_);
}

absl::StatusOr<std::unique_ptr<SequenceAttention>> SequenceAttention::Fork() const {
  ASSIGN_OR_RETURN(std::unique_ptr<ResidentTokens> resident, resident_->Fork());
  std::unique_ptr<SequenceAttention> fork(new SequenceAttention(
      params_, resources_, store_, selector_->Clone(), std::move(resident), max_tokens_));
  fork->lse_ = lse_;
  fork->has_lse_ = has_lse_;
  fork->probe_.Want(probe_.wanted());
  return fork;
}

void SequenceAttention::BeginStep(const BlockTable& table, int context_len, bool is_decode,
                                  std::vector<std::byte*>* blocks,
                                  std::vector<std::byte*>* state_blocks) {
  transfers_.clear();
  if (is_decode) {
    resident_->BlockBases(table, context_len, blocks);
    probe_.BeginStep(context_len - 1);
  } else {
    resident_->BeginPrefill(context_len);
    store_.BlockBases(table, context_len, blocks);
  }
  store_.StateBases(table, state_blocks);
}

void SequenceAttention::AdoptRows(const BlockTable& table, absl::Span<const PrefillQueries> queries,
                                  ComputePool* pool) {
  const ModelConfig& config = *resources_.config;
  std::vector<std::byte*> blocks, state_blocks;
  BeginStep(table, table.num_tokens, /*is_decode=*/false, &blocks, &state_blocks);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    ObservePrefill({.layout = &store_.layout(),
                    .blocks = blocks,
                    .state_layout = &state_layout_,
                    .state_blocks = state_blocks,
                    .layer = layer,
                    .context_len = table.num_tokens,
                    .group_size = config.group_size(),
                    .softmax_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
                    .pool = pool},
                   queries.empty() ? PrefillQueries() : queries[layer]);
  }
}

void SequenceAttention::EndStep() { resident_->EndStep(); }

void SequenceAttention::AddLse(LayerContext* context) const {
  context->state_layout = &state_layout_;
  context->all_lse = lse_;
  context->has_lse = has_lse_;
  context->lse = context->lse_of(context->layer);
}

void SequenceAttention::Note(int layer, int during, LayerTransfer::Sent sent,
                             int64_t bytes_before) {
  const int64_t bytes = resident_->counters().host_to_device_bytes - bytes_before;
  if (bytes == 0) return;
  transfers_.push_back({.layer = layer, .during = during, .sent = sent, .bytes = bytes});
}

void SequenceAttention::PredictAhead(LayerContext context, LayerPoint point, const float* residual,
                                     const void* normed) {
  if (context.context_len <= params_.token_budget) return;
  AddLse(&context);
  const absl::Time start = absl::Now();
  selector_->OnHidden(context, point, residual, normed);
  const bool is_input = point == LayerPoint::kInput;
  for (int l = is_input ? context.layer : context.layer + 1; l < resources_.config->num_layers;
       ++l) {
    const TokenSelection* early = selector_->Early(l);
    // The choice stays until its layer runs: it is sent once.
    if (early != nullptr && prefetched_[l] == 0) {
      const int64_t before = resident_->counters().host_to_device_bytes;
      resident_->Prefetch(l, *early);
      Note(l, context.layer,
           is_input ? LayerTransfer::Sent::kAtInput : LayerTransfer::Sent::kAfterAttention, before);
    }
    prefetched_[l] = early != nullptr ? 1 : 0;
  }
  stats_.predictor += absl::Now() - start;
}

void SequenceAttention::Select(LayerContext context, const float* query, int window) {
  const bool is_dense_layer = window > 0 || selector_->IsDenseLayer(context.layer) ||
                              (context.layer == 0 && params_.dense_first_layer);
  stand_in_ = {};
  prefetched_[context.layer] = 0;
  const bool holds_all = context.context_len <= params_.token_budget;
  is_sparse_ = !is_dense_layer && (!holds_all || selector_->WantsWeights());
  const int num_kv_heads = context.layout->num_kv_heads;
  const int visible = window > 0 ? std::min(window, context.context_len) : context.context_len;
  stats_.attended_lists += num_kv_heads;
  stats_.context_tokens += int64_t{visible} * num_kv_heads;
  if (!is_sparse_) {
    DenseFallbacks& fallbacks = stats_.fallbacks;
    ++(window > 0       ? fallbacks.window
       : is_dense_layer ? fallbacks.first_layer
                        : fallbacks.short_context);
    stats_.attended_tokens += int64_t{visible} * num_kv_heads;
    return;
  }
  AddLse(&context);
  const absl::Time start = absl::Now();
  stand_in_ = selector_->StandIn(context);
  if (!stand_in_.empty()) {
    is_sparse_ = false;
    stats_.predictor += absl::Now() - start;
    stats_.attended_tokens += int64_t{context.context_len} * num_kv_heads;
    return;
  }
  selector_->Select(context, query, &selection_);
  if (probe_.is_due(context.layer)) probe_.BeforeAttention(context);
  stats_.predictor += absl::Now() - start;
  sink_shift_ = selector_->SinkShift(context);
  if (sink_shift_ != 0) RotateSinkQuery(query);
  if (selector_->WantsWeights()) {
    weights_.resize(static_cast<size_t>(num_heads_) * selection_.capacity);
    weight_rows_.resize(static_cast<size_t>(num_heads_));
    for (int h = 0; h < num_heads_; ++h) {
      weight_rows_[h] = weights_.data() + static_cast<size_t>(h) * selection_.capacity;
    }
  }
}

void SequenceAttention::RotateSinkQuery(const float* query) {
  const int half = resources_.config->head_dim / 2;
  const size_t size = static_cast<size_t>(num_heads_) * 2 * half;
  sink_query_.resize(size);
  rotation_.resize(static_cast<size_t>(2) * half);
  float* cos = rotation_.data();
  float* sin = cos + half;
  resources_.rope->Rotation(sink_shift_, cos, sin);
  // The query has the attention factor already; a pure rotation must not add it again.
  const float scale = 1.0f / resources_.rope->attention_factor();
  for (size_t at = 0; at < size; at += 2 * static_cast<size_t>(half)) {
    for (int i = 0; i < half; ++i) {
      const float x = query[at + i], y = query[at + half + i];
      sink_query_[at + i] = scale * (x * cos[i] + y * sin[i]);
      sink_query_[at + half + i] = scale * (y * cos[i] - x * sin[i]);
    }
  }
}

void SequenceAttention::Fetch(int layer) {
  int64_t before = resident_->counters().host_to_device_bytes;
  if (const TokenSelection* candidates = selector_->NewCandidates(layer)) {
    resident_->Prefetch(layer, *candidates);
    Note(layer, layer, LayerTransfer::Sent::kAtChoice, before);
    before = resident_->counters().host_to_device_bytes;
  }
  view_ = resident_->Fetch(layer, selection_, params_.misses == MissRule::kDeferred);
  Note(layer, layer, LayerTransfer::Sent::kAtFetch, before);
  for (int h = 0; h < selection_.num_kv_heads; ++h) stats_.attended_tokens += view_.num_rows[h];
}

void SequenceAttention::ObserveDecode(LayerContext context, const float* query) {
  if (is_sparse_ && probe_.is_due(context.layer)) {
    probe_.AfterAttention(context, query, lse(context.layer), selection_, &stats_);
  }
  has_lse_[context.layer] = 1;
  if (!is_sparse_ || !selector_->WantsWeights()) return;
  AddLse(&context);
  selector_->OnAttended(context, selection_, weight_rows_.data());
}

void SequenceAttention::ObserveHidden(LayerContext context, LayerPoint point,
                                      const PrefillHidden& hidden) {
  AddLse(&context);
  selector_->OnPrefillHidden(context, point, hidden);
}

void SequenceAttention::ObservePrefill(LayerContext context, const PrefillQueries& queries) {
  AddLse(&context);
  selector_->OnPrefill(context, queries);
}

AttentionStats SequenceAttention::stats() const {
  AttentionStats stats = stats_;
  stats.offload = resident_->counters();
  stats.scored_tokens = selector_->num_scored() - scored_before_;
  return stats;
}

}  // namespace tokenbutler
