#include "engine/sparse_steps.h"

#include <cmath>
#include <cstddef>
#include <vector>

#include "engine/sequence_attention.h"

namespace tokenbutler {
namespace {

// What `attention` sees, which decides for the sequence or only observes it.
LayerContext ContextOf(const TokenRows& rows, const TokenRows::Sequence& sequence,
                       const SequenceAttention& attention,
                       const std::vector<std::byte*>& state_blocks, int layer, ComputePool& pool) {
  const ModelConfig& config = rows.config();
  return {.layout = &rows.kv_store().layout(),
          .blocks = sequence.blocks,
          .state_layout = &attention.state_layout(),
          .state_blocks = state_blocks,
          .layer = layer,
          .context_len = sequence.context_len(),
          .group_size = config.group_size(),
          .softmax_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
          .pool = &pool};
}

LayerContext ContextOf(const TokenRows& rows, const TokenRows::Sequence& sequence, int layer,
                       ComputePool& pool) {
  return ContextOf(rows, sequence, *sequence.attention, sequence.state_blocks, layer, pool);
}

const float* QueryOf(const TokenRows& rows, const TokenRows::Sequence& sequence) {
  return rows.activations().qkv + static_cast<size_t>(sequence.first_row) * rows.qkv_size();
}

// Shows a prefill chunk's hidden states to those who watch it.
void ObserveHidden(const TokenRows& rows, int layer, LayerPoint point, ComputePool& pool) {
  const size_t size = static_cast<size_t>(rows.config().hidden_size);
  for (const TokenRows::Sequence& sequence : rows.sequences()) {
    const PrefillHidden hidden = {
        .residual = rows.activations().residual + static_cast<size_t>(sequence.first_row) * size,
        .num_rows = sequence.num_rows};
    for (const TokenRows::Sequence::Observer& observer : sequence.observers) {
      observer.attention->ObserveHidden(
          ContextOf(rows, sequence, *observer.attention, observer.state_blocks, layer, pool), point,
          hidden);
    }
    if (sequence.attention == nullptr) continue;
    sequence.attention->ObserveHidden(ContextOf(rows, sequence, layer, pool), point, hidden);
  }
}

}  // namespace

void PredictAhead(TokenRows& rows, int layer, LayerPoint point, ComputePool& pool) {
  if (!rows.is_decode()) {
    ObserveHidden(rows, layer, point, pool);
    return;
  }
  const Activations& a = rows.activations();
  const size_t size = static_cast<size_t>(rows.config().hidden_size);
  for (const TokenRows::Sequence& sequence : rows.sequences()) {
    if (sequence.attention == nullptr) continue;
    const size_t at = static_cast<size_t>(sequence.first_row) * size;
    sequence.attention->PredictAhead(
        ContextOf(rows, sequence, layer, pool), point, a.residual + at,
        static_cast<const std::byte*>(a.normed) + at * DTypeBytes(rows.compute_dtype()));
  }
}

void SelectTokens(TokenRows& rows, int layer, int window, ComputePool& pool) {
  if (!rows.is_decode()) return;
  for (const TokenRows::Sequence& sequence : rows.sequences()) {
    if (sequence.attention == nullptr) continue;
    sequence.attention->Select(ContextOf(rows, sequence, layer, pool), QueryOf(rows, sequence),
                               window);
  }
}

void FetchTokens(TokenRows& rows, int layer) {
  if (!rows.is_decode()) return;
  for (const TokenRows::Sequence& sequence : rows.sequences()) {
    if (sequence.attention == nullptr || !sequence.attention->is_sparse()) continue;
    sequence.attention->Fetch(layer);
  }
}

void ObserveAttention(TokenRows& rows, int layer, ComputePool& pool) {
  for (const TokenRows::Sequence& sequence : rows.sequences()) {
    const PrefillQueries queries = {.queries = QueryOf(rows, sequence),
                                    .stride = static_cast<size_t>(rows.qkv_size()),
                                    .num_rows = sequence.num_rows};
    for (const TokenRows::Sequence::Observer& observer : sequence.observers) {
      observer.attention->ObservePrefill(
          ContextOf(rows, sequence, *observer.attention, observer.state_blocks, layer, pool),
          queries);
    }
    if (sequence.attention == nullptr) continue;
    const LayerContext context = ContextOf(rows, sequence, layer, pool);
    if (rows.is_decode()) {
      sequence.attention->ObserveDecode(context, QueryOf(rows, sequence));
    } else {
      sequence.attention->ObservePrefill(context, queries);
    }
  }
}

}  // namespace tokenbutler
