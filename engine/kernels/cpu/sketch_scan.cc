#include "engine/kernels/sketch_scan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/kernels/cpu/sketch_pass.h"
#include "engine/kernels/top_k.h"

namespace tokenbutler {
namespace {

using Head = SketchScanParams::Head;

constexpr int kSlack = 16;  // what vectors may write too much
constexpr int kSubBlock = SketchLayout::kSubBlockTokens;
// Pieces of a head's range are at least this long, whatever the layout.
constexpr int kMinPieceTokens = kSketchBatchBlocks * kSubBlock;
// Thresholds: what everything passes, and the mark of one that must be replaced by it.
constexpr float kEverything = -std::numeric_limits<float>::infinity();
constexpr float kWrongGuess = std::numeric_limits<float>::infinity();

size_t RoundUp(size_t n) { return (n + 63) / 64 * 64; }

int NumTokens(const Head& head) { return std::max(0, head.end - head.begin); }

// How far below the k-th score the next step's threshold is set, in the distance between the k-th
// and the (k/2)-th score. Tails of scores are about exponential, so 1 lets twice as many pass.
constexpr float kThresholdMargin = 1.0f;

// One head's part of the workspace. Pieces of the range write what passes the threshold to places
// of their own, which hold all of the piece.
class HeadWorkspace {
 public:
  static size_t LargestBytes(absl::Span<const Head> heads) {
    size_t bytes = 0;
    for (const Head& head : heads) bytes = std::max(bytes, HeadWorkspace(head, nullptr).bytes_);
    return bytes;
  }

  HeadWorkspace(const Head& head, std::byte* at) {
    const size_t pieces = NumTokens(head) / kMinPieceTokens + 2;
    const size_t slots = NumTokens(head) + pieces * kSlack;
    Place(at, pieces, &counts);
    Place(at, slots, &scores);
    Place(at, slots, &positions);
  }

  int32_t* counts;     // [pieces] scores that passed
  float* scores;       // [slots]
  int32_t* positions;  // [slots]

 private:
  template <class T>
  void Place(std::byte* at, size_t n, T** array) {
    *array = reinterpret_cast<T*>(at == nullptr ? nullptr : at + bytes_);
    bytes_ += RoundUp(n * sizeof(T));
  }

  size_t bytes_ = 0;
};

class Scan {
 public:
  Scan(const SketchScanParams& p, ComputePool& pool)
      : p_(p), pool_(pool), piece_blocks_(SketchPass::PieceBlocks(p.layout)) {
    for (const Head& head : p.heads) max_pieces_ = std::max(max_pieces_, NumPieces(head));
    workspace_stride_ = HeadWorkspace::LargestBytes(p.heads);
  }

  void Run() {
    ForEachPiece([this](const Head& head, const HeadWorkspace& w, int piece) {
      Collect(head, w, piece, std::isnan(head.threshold) ? kEverything : head.threshold);
    });
    if (MarkWrongGuesses()) {
      ForEachPiece([this](const Head& head, const HeadWorkspace& w, int piece) {
        if (head.threshold == kWrongGuess) Collect(head, w, piece, kEverything);
      });
    }
    ForEachHead([this](Head& head, const HeadWorkspace& w) { Select(head, w); });
  }

 private:
  int NumPieces(const Head& head) const {
    if (head.end <= head.begin) return 0;
    return LastBlock(head) / piece_blocks_ - FirstBlock(head) / piece_blocks_ + 1;
  }
  int FirstBlock(const Head& head) const { return head.begin / p_.layout.block_size; }
  int LastBlock(const Head& head) const { return (head.end - 1) / p_.layout.block_size; }
  // Tokens of the range to choose from.
  int NumEligible(const Head& head) const {
    if (!head.blocks) return NumTokens(head);
    const int size = p_.layout.block_size;
    int64_t n = 0;
    for (const int32_t block : *head.blocks) {
      n += std::min((block + 1) * size, head.end) - std::max(block * size, head.begin);
    }
    return static_cast<int>(n);
  }
  HeadWorkspace WorkspaceOf(size_t index) const {
    return HeadWorkspace(p_.heads[index], p_.workspace + index * workspace_stride_);
  }

  template <class Fn>
  void ForEachHead(const Fn& fn) {
    pool_.ParallelFor(static_cast<int>(p_.heads.size()), [&](int i) {
      if (NumTokens(p_.heads[i]) > 0) fn(p_.heads[i], WorkspaceOf(i));
    });
  }
  // fn(head, workspace, piece) with pieces counted from the start of the sequence.
  template <class Fn>
  void ForEachPiece(const Fn& fn) {
    pool_.ParallelFor(static_cast<int>(p_.heads.size()) * max_pieces_, [&](int task) {
      const int i = task / max_pieces_, piece = task % max_pieces_;
      const Head& head = p_.heads[i];
      if (piece >= NumPieces(head)) return;
      fn(head, WorkspaceOf(i), piece + FirstBlock(head) / piece_blocks_);
    });
  }

  SketchPass MakePass(const Head& head) const {
    return SketchPass(p_.layout, p_.group_size, p_.softmax_scale, head.keys, head.queries, head.lse,
                      head.begin, head.end);
  }

  // Whether any threshold was so high that too few scores passed it.
  bool MarkWrongGuesses() const {
    bool any = false;
    for (size_t i = 0; i < p_.heads.size(); ++i) {
      Head& head = p_.heads[i];
      const int32_t* counts = WorkspaceOf(i).counts;
      const int64_t passed = std::accumulate(counts, counts + NumPieces(head), int64_t{0});
      if (passed >= std::min(head.k, NumEligible(head))) continue;
      head.threshold = kWrongGuess;
      any = true;
    }
    return any;
  }

  // Where a piece writes: its place if everything passed, and some slack.
  int SlotOf(const Head& head, int piece) const {
    const int first = FirstBlock(head) / piece_blocks_;
    const int token = std::max(piece * piece_blocks_ * p_.layout.block_size, head.begin);
    return token - head.begin + (piece - first) * kSlack;
  }

  // The given blocks that are in this piece.
  absl::Span<const int32_t> BlocksOf(const Head& head, int piece) const {
    const auto* from =
        std::lower_bound(head.blocks->begin(), head.blocks->end(), piece * piece_blocks_);
    const auto* to = std::lower_bound(from, head.blocks->end(), (piece + 1) * piece_blocks_);
    return absl::MakeConstSpan(from, to - from);
  }

  void Collect(const Head& head, const HeadWorkspace& w, int piece, float threshold) const {
    const int slot = SlotOf(head, piece);
    int count = 0;
    const auto collect = [&](const SketchPass::Scores& batch) {
      count += CollectAbove(batch.scores, batch.positions, batch.num_tiles, head.begin, head.end,
                            threshold, w.scores + slot + count, w.positions + slot + count);
    };
    SketchPass pass = MakePass(head);
    if (head.blocks) {
      const absl::Span<const int32_t> part = BlocksOf(head, piece);
      pass.ScoreBlocks(part.data(), static_cast<int>(part.size()), collect);
    } else {
      pass.ScoreAll(piece, collect);
    }
    w.counts[piece - FirstBlock(head) / piece_blocks_] = count;
  }

  // Moves what the pieces collected together, and returns how much it is.
  int Join(const Head& head, const HeadWorkspace& w) const {
    const int first = FirstBlock(head) / piece_blocks_;
    int count = 0;
    for (int i = 0; i < NumPieces(head); ++i) {
      const int slot = SlotOf(head, first + i);
      std::memmove(w.scores + count, w.scores + slot, w.counts[i] * sizeof(float));
      std::memmove(w.positions + count, w.positions + slot, w.counts[i] * sizeof(int32_t));
      count += w.counts[i];
    }
    return count;
  }

  void Select(Head& head, const HeadWorkspace& w) const {
    const int count = Join(head, w);
    const int k = TopK(w.scores, count, head.k, head.tokens);
    head.num_selected = k;
    for (int i = 0; i < k; ++i) {
      const int at = head.tokens[i];  // >= i
      w.scores[i] = w.scores[at];
      head.tokens[i] = w.positions[at];
    }
    if (head.scores != nullptr) std::copy_n(w.scores, k, head.scores);
    head.threshold = std::numeric_limits<float>::quiet_NaN();
    if (k < 2 || k == NumEligible(head)) return;
    const float worst = KthLargest(w.scores, k, k);
    head.threshold = worst - kThresholdMargin * (KthLargest(w.scores, k, k / 2) - worst);
  }

  const SketchScanParams& p_;
  ComputePool& pool_;
  const int piece_blocks_;
  int max_pieces_ = 0;
  size_t workspace_stride_ = 0;
};

}  // namespace

size_t SketchScanWorkspaceBytes(absl::Span<const SketchScanParams::Head> heads) {
  return heads.size() * HeadWorkspace::LargestBytes(heads);
}

void SketchScan(const SketchScanParams& p, ComputePool& pool) { Scan(p, pool).Run(); }

}  // namespace tokenbutler
