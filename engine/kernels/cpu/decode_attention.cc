#include "engine/kernels/decode_attention.h"

#include <algorithm>
#include <cstddef>
#include <new>

#include "engine/kernels/online_softmax.h"

// The order of these matters to Highway.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/decode_attention.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "engine/kernels/cpu/attend_tile-inl.h"
// clang-format on

#ifndef TOKENBUTLER_DECODE_ATTENTION_PIECE_
#define TOKENBUTLER_DECODE_ATTENTION_PIECE_
namespace tokenbutler {

// A task: tokens [begin, end) of one query's context for the query heads of one KV head.
struct AttentionPiece {
  const DecodeAttentionParams::Query* query;
  int kv_head;
  int begin, end;
  OnlineSoftmaxState* states;  // [group_size], reset
};

}  // namespace tokenbutler
#endif  // TOKENBUTLER_DECODE_ATTENTION_PIECE_

HWY_BEFORE_NAMESPACE();
namespace tokenbutler {
namespace HWY_NAMESPACE {

// Where token t's key row is.
template <class T>
const T* KeyRow(const DecodeAttentionParams& p, const AttentionPiece& piece, int t) {
  const KvLayout& kv = p.layout;
  const std::byte* block = piece.query->blocks[t / kv.block_size];
  return reinterpret_cast<const T*>(block + kv.key_offset(p.layer, piece.kv_head)) +
         static_cast<size_t>(t % kv.block_size) * kv.head_dim;
}

template <class T>
void AttendPieceOf(const DecodeAttentionParams& p, const AttentionPiece& piece) {
  const KvLayout& kv = p.layout;
  const int group_size = p.num_heads / kv.num_kv_heads;
  const size_t values_after_keys = static_cast<size_t>(kv.block_size) * kv.head_dim;
  AttentionTile<T> tile{
      .head_dim = static_cast<size_t>(kv.head_dim),
      .queries = piece.query->query + static_cast<size_t>(piece.kv_head) * group_size * kv.head_dim,
      .num_queries = group_size,
      .softmax_scale = p.softmax_scale,
      .states = piece.states};
  for (int t = piece.begin; t < piece.end; t += tile.num_tokens) {
    // Tiles end at multiples of the tile size in a block, wherever the piece begins.
    const int row = t % kv.block_size;
    const int in_tile = kTileTokens - row % kTileTokens;
    tile.num_tokens = std::min({in_tile, kv.block_size - row, piece.end - t});
    tile.keys = KeyRow<T>(p, piece, t);
    tile.values = tile.keys + values_after_keys;
    const int next = t + tile.num_tokens;
    tile.next_keys = next < piece.end ? KeyRow<T>(p, piece, next) : tile.keys;
    AttendTile(tile);
  }
}

void AttendPiece(const DecodeAttentionParams& p, const AttentionPiece& piece) {
  switch (p.layout.dtype) {
    case DType::kBF16:
      return AttendPieceOf<BF16>(p, piece);
    case DType::kF16:
      return AttendPieceOf<F16>(p, piece);
    default:
      return AttendPieceOf<float>(p, piece);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tokenbutler
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tokenbutler {

HWY_EXPORT(AttendPiece);

namespace {

// A context is cut into at most kMaxPieces pieces of at least kMinPieceTokens tokens: pieces per KV
// head are what the threads share, and each costs a merge.
constexpr int kMaxPieces = 16;
constexpr int kMinPieceTokens = 256;
// Piece lengths are multiples of this.
constexpr int kPieceAlign = 64;
// Keys and values worth waking the other threads for.
constexpr size_t kMinParallelBytes = size_t{64} << 10;
constexpr size_t kCacheLine = 64;

size_t RoundUp(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Which tokens a query attends to and how they are cut. Depends on nothing but the query.
struct ContextCut {
  int begin = 0, end = 0;
  int piece_tokens = 0;
  int num_pieces = 0;
};

ContextCut Cut(const DecodeAttentionParams& p, const DecodeAttentionParams::Query& query) {
  ContextCut cut;
  cut.begin = p.window == 0 ? 0 : std::max(0, query.context_len - p.window);
  cut.end = query.context_len;
  const int tokens = cut.end - cut.begin;
  const int share = (tokens + kMaxPieces - 1) / kMaxPieces;
  cut.piece_tokens =
      std::max(kMinPieceTokens, (share + kPieceAlign - 1) / kPieceAlign * kPieceAlign);
  cut.num_pieces = (tokens + cut.piece_tokens - 1) / cut.piece_tokens;
  return cut;
}

// The workspace: [query][kv_head][piece]{ OnlineSoftmaxState [group_size], acc
// [group_size][head_dim] }, states and each accumulator on cache lines of their own.
class PieceStates {
 public:
  explicit PieceStates(const DecodeAttentionParams& p)
      : workspace_(reinterpret_cast<std::byte*>(p.workspace)),
        num_kv_heads_(p.layout.num_kv_heads),
        group_size_(p.num_heads / p.layout.num_kv_heads),
        head_dim_(p.layout.head_dim),
        states_bytes_(RoundUp(group_size_ * sizeof(OnlineSoftmaxState), kCacheLine)),
        acc_bytes_(RoundUp(head_dim_ * sizeof(float), kCacheLine)) {}

  // [group_size], no token seen.
  OnlineSoftmaxState* Create(size_t query, int kv_head, int piece) const {
    std::byte* at = At(query, kv_head, piece);
    auto* states = reinterpret_cast<OnlineSoftmaxState*>(at);
    for (int h = 0; h < group_size_; ++h) {
      float* acc = reinterpret_cast<float*>(at + states_bytes_ + h * acc_bytes_);
      new (&states[h]) OnlineSoftmaxState{.acc = acc};
      states[h].Reset(head_dim_);
    }
    return states;
  }
  // [group_size], as left by the piece's task.
  OnlineSoftmaxState* Get(size_t query, int kv_head, int piece) const {
    return reinterpret_cast<OnlineSoftmaxState*>(At(query, kv_head, piece));
  }

 private:
  std::byte* At(size_t query, int kv_head, int piece) const {
    const size_t index = (query * num_kv_heads_ + kv_head) * kMaxPieces + piece;
    return workspace_ + index * (states_bytes_ + group_size_ * acc_bytes_);
  }

  std::byte* workspace_;
  int num_kv_heads_, group_size_, head_dim_;
  size_t states_bytes_, acc_bytes_;
};

void MergePieces(const DecodeAttentionParams& p, const PieceStates& all, size_t query_index,
                 int kv_head) {
  const DecodeAttentionParams::Query& query = p.queries[query_index];
  const int head_dim = p.layout.head_dim;
  const int group_size = p.num_heads / p.layout.num_kv_heads;
  const int num_pieces = Cut(p, query).num_pieces;
  OnlineSoftmaxState* merged = all.Get(query_index, kv_head, 0);
  for (int h = 0; h < group_size; ++h) {
    for (int piece = 1; piece < num_pieces; ++piece) {
      merged[h].Merge(all.Get(query_index, kv_head, piece)[h], head_dim);
    }
    const int head = kv_head * group_size + h;
    merged[h].Finish(query.out + static_cast<size_t>(head) * head_dim, head_dim);
    if (query.lse != nullptr) query.lse[head] = merged[h].lse();
  }
}

}  // namespace

size_t DecodeAttentionWorkspaceFloats(int num_queries, int num_heads, int head_dim) {
  // At most one cache line of state per head, and its accumulator.
  const size_t head_bytes = kCacheLine + RoundUp(head_dim * sizeof(float), kCacheLine);
  return static_cast<size_t>(num_queries) * num_heads * kMaxPieces * head_bytes / sizeof(float);
}

void DecodeAttention(const DecodeAttentionParams& p, ComputePool& pool) {
  const int num_queries = static_cast<int>(p.queries.size());
  const int num_kv_heads = p.layout.num_kv_heads;
  const PieceStates states(p);
  int max_pieces = 1;
  size_t tokens = 0;
  for (const DecodeAttentionParams::Query& query : p.queries) {
    const ContextCut cut = Cut(p, query);
    max_pieces = std::max(max_pieces, cut.num_pieces);
    tokens += cut.end - cut.begin;
  }
  // Task = (query, KV head, piece), piece fastest: neighbours read neighbouring memory.
  const auto attend = [&](int task) {
    const int piece = task % max_pieces;
    const int kv_head = task / max_pieces % num_kv_heads;
    const int query = task / max_pieces / num_kv_heads;
    const ContextCut cut = Cut(p, p.queries[query]);
    if (piece >= cut.num_pieces) return;
    const int begin = cut.begin + piece * cut.piece_tokens;
    HWY_DYNAMIC_DISPATCH(AttendPiece)
    (p, {.query = &p.queries[query],
         .kv_head = kv_head,
         .begin = begin,
         .end = std::min(begin + cut.piece_tokens, cut.end),
         .states = states.Create(query, kv_head, piece)});
    if (cut.num_pieces == 1) MergePieces(p, states, query, kv_head);
  };
  const auto merge = [&](int task) {
    const int query = task / num_kv_heads;
    if (Cut(p, p.queries[query]).num_pieces == 1) return;
    MergePieces(p, states, query, task % num_kv_heads);
  };
  const int num_heads = num_queries * num_kv_heads;
  const size_t kv_bytes = tokens * num_kv_heads * 2 * p.layout.row_bytes();
  if (kv_bytes < kMinParallelBytes) {
    for (int task = 0; task < num_heads * max_pieces; ++task) attend(task);
    for (int task = 0; max_pieces > 1 && task < num_heads; ++task) merge(task);
    return;
  }
  pool.ParallelFor(num_heads * max_pieces, attend);
  if (max_pieces > 1) pool.ParallelFor(num_heads, merge);
}

}  // namespace tokenbutler
#endif  // HWY_ONCE
