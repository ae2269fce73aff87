#include "engine/kernels/cpu/attention_piece.h"

#include <algorithm>
#include <bit>
#include <cstddef>

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/attention_piece.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "engine/kernels/cpu/attend_tile-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

static_assert(kTileTokens == kAttentionTileTokens);

// Cuts a piece into tiles.
template <class T>
class PieceTiles {
 public:
  explicit PieceTiles(const AttentionPiece& piece)
      : piece_(piece),
        rows_(*piece.layout, piece.layer, piece.kv_head),
        block_shift_(std::has_single_bit(rows_.block_size) ? std::countr_zero(rows_.block_size)
                                                           : -1) {}

  // The tile that begins at `at` < piece.end.
  void Fill(int at, TileRows<T>* tile) const {
    if (piece_.rows == nullptr) {
      return tile->FillRun(rows_, piece_.blocks, at, piece_.end);
    }
    int end = std::min(at / kTileTokens * kTileTokens + kTileTokens, piece_.end);
    if (at < piece_.num_first) end = std::min(end, piece_.num_first);
    for (int i = at; i < end; ++i) {
      const auto row = static_cast<unsigned>(piece_.rows[i]);
      const unsigned block = block_shift_ >= 0 ? row >> block_shift_ : row / rows_.block_size;
      tile->Set(i - at, rows_, piece_.blocks[block], row - block * rows_.block_size);
    }
    tile->num_tokens = end - at;
    tile->Pad();
  }

 private:
  const AttentionPiece& piece_;
  const HeadRows<T> rows_;
  int block_shift_;  // log2 of block_size, or -1
};

// The heads [first_head, first_head + num_heads) of a piece.
template <int kDim, class T>
void AttendHeads(const AttentionPiece& piece, int first_head, int num_heads) {
  const int head_dim = piece.layout->head_dim;
  const PieceTiles<T> tiles(piece);
  HWY_ALIGN float packed[kMaxPackedFloats];
  TileRows<T> rows[2];
  AttentionTile<T> tile{
      .values_after_keys = static_cast<size_t>(piece.layout->block_size) * head_dim,
      .head_dim = head_dim,
      .queries = packed,
      .num_queries = num_heads,
      .softmax_scale = piece.softmax_scale,
      .states = piece.states + first_head,
      .logits_out = piece.logits == nullptr ? nullptr : piece.logits + first_head};
  tiles.Fill(piece.begin, &rows[0]);
  PrefetchKeys(rows[0], head_dim);
  for (int t = 0; t < rows[0].num_tokens; ++t) {
    PrefetchRow(rows[0].keys[t] + tile.values_after_keys, head_dim);
  }
  const float* packed_queries = nullptr;
  int which = 0;
  for (int at = piece.begin; at < piece.end; which = 1 - which) {
    const int next = at + rows[which].num_tokens;
    tile.rows = &rows[which];
    tile.next = nullptr;
    if (next < piece.end) {
      tiles.Fill(next, &rows[1 - which]);
      tile.next = &rows[1 - which];
      // Rows from all over memory arrive soonest when all keys are asked for at once, and the
      // values later; consecutive ones when they are asked for at the pace at which they are used.
      tile.fetch_next_keys = piece.rows == nullptr;
      if (!tile.fetch_next_keys) PrefetchKeys(rows[1 - which], head_dim);
    }
    const float* queries = at < piece.num_first ? piece.first_queries : piece.queries;
    if (queries != packed_queries) {
      PackQueries<T>(queries + static_cast<size_t>(first_head) * head_dim, num_heads, head_dim,
                     packed);
      packed_queries = queries;
    }
    tile.first_token = at;
    AttendTile<kDim>(tile);
    at = next;
  }
}

template <int kDim, class T>
void AttendPieceOf(const AttentionPiece& piece) {
  const int max_heads = MaxPackedHeads(piece.layout->head_dim);
  for (int first = 0; first < piece.group_size; first += max_heads) {
    AttendHeads<kDim, T>(piece, first, std::min(max_heads, piece.group_size - first));
  }
}

void AttendAnyPiece(const AttentionPiece& piece) {
  WithRowType(*piece.layout,
              [&](auto dim, auto element) { AttendPieceOf<dim.value, decltype(element)>(piece); });
}

void ExpWeights(float max, float sum, int num_tokens, float* logits) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto maxes = hn::Set(d, max);
  const auto scales = hn::Set(d, 1.0f / sum);
  int t = 0;
  for (; t + lanes <= num_tokens; t += lanes) {
    const auto x = hn::Sub(hn::LoadU(d, logits + t), maxes);
    hn::StoreU(hn::Mul(ExpOfNegative(x), scales), d, logits + t);
  }
  for (; t < num_tokens; ++t) {
    const auto x = hn::Set(d, logits[t] - max);
    logits[t] = hn::GetLane(hn::Mul(ExpOfNegative(x), scales));
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(AttendAnyPiece);
HWY_EXPORT(ExpWeights);

void AttendPiece(const AttentionPiece& piece) { HWY_DYNAMIC_DISPATCH(AttendAnyPiece)(piece); }

void LogitsToWeights(float max, float sum, int num_tokens, float* logits) {
  HWY_DYNAMIC_DISPATCH(ExpWeights)(max, sum, num_tokens, logits);
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
