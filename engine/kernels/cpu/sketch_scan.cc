#include "engine/kernels/sketch_scan.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/kernels/cpu/sketch_pass.h"
#include "engine/kernels/top_k.h"

namespace tokenbutler {
namespace {

using Head = SketchScanParams::Head;
using BatchOfBlocks = std::array<int32_t, kSketchBatchBlocks>;

constexpr float kEverything = -std::numeric_limits<float>::infinity();  // as a threshold

size_t RoundUp(size_t n) { return (n + 63) / 64 * 64; }

int NumTokens(const Head& head) { return std::max(0, head.end - head.begin); }

// Before a scan, the scores of some blocks tell which threshold lets this many times k pass. On
// real text (four times 12K tokens, Qwen2.5-Coder-0.5B) 2 of 36 864 such guesses were too high; of
// guesses from the last step's scores, 27 %: queries change too much.
constexpr float kPassedPerChosen = 2;
constexpr int kMinSampledBlocks = 16, kBlocksPerSampled = 64;
// Behind each piece's place: vectors are stored whole.
constexpr int kPieceScratch = 16;

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
    const size_t pieces = NumTokens(head) / SketchPass::kMinPieceTokens + 2;
    const size_t slots = NumTokens(head) + pieces * kPieceScratch;
    Place(at, pieces, &counts);
    Place(at, slots, &scores);
    Place(at, slots, &positions);
    Place(at, 1, &threshold);
    Place(at, 1, &parts_left);
  }

  // None of this many pieces has been scanned with this threshold, or no part of a sample.
  void Begin(float least, int num_parts) const {
    *threshold = least;
    new (parts_left) std::atomic<int>(num_parts);
  }
  // True for the last one: it then sees what the others left.
  bool FinishPart() const { return parts_left->fetch_sub(1, std::memory_order_acq_rel) == 1; }

  int32_t* counts;     // [pieces] scores that passed
  float* scores;       // [slots]
  int32_t* positions;  // [slots]
  float* threshold;
  std::atomic<int>* parts_left;

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
    GuessThresholds();
    ScanPieces();
    bool any_wrong = false;
    for (size_t i = 0; i < p_.heads.size(); ++i) {
      if (p_.heads[i].num_selected != kNotYet) continue;
      WorkspaceOf(i).Begin(kEverything, NumPieces(p_.heads[i]));
      any_wrong = true;
    }
    if (any_wrong) ScanPieces();
  }

 private:
  static constexpr int kNotYet = -1;  // as a number of selected tokens

  int FirstBlock(const Head& head) const { return head.begin / p_.layout.block_size; }
  int LastBlock(const Head& head) const { return (head.end - 1) / p_.layout.block_size; }
  // Pieces are aligned in the sequence, or in the list of blocks.
  int FirstPiece(const Head& head) const {
    return head.blocks ? 0 : FirstBlock(head) / piece_blocks_;
  }
  int NumPieces(const Head& head) const {
    if (head.end <= head.begin) return 0;
    if (!head.blocks) return LastBlock(head) / piece_blocks_ - FirstPiece(head) + 1;
    // One at least, which chooses nothing.
    return std::max(1, (static_cast<int>(head.blocks->size()) + piece_blocks_ - 1) / piece_blocks_);
  }
  HeadWorkspace WorkspaceOf(size_t index) const {
    return HeadWorkspace(p_.heads[index], p_.workspace + index * workspace_stride_);
  }

  // Scans the heads that have no result yet. Whoever scans the last piece of a head chooses its
  // tokens, while others scan pieces of the next one; a head whose threshold let too few pass is
  // left without a result.
  void ScanPieces() {
    pool_.ParallelFor(static_cast<int>(p_.heads.size()) * max_pieces_, [&](int task) {
      const int i = task / max_pieces_, piece = task % max_pieces_;
      Head& head = p_.heads[i];
      // No other head's result is looked at, and this one's is there before the tasks or after its
      // last piece.
      if (piece >= NumPieces(head) || head.num_selected != kNotYet) return;
      const HeadWorkspace w = WorkspaceOf(i);
      Collect(head, w, piece, task + 1);
      if (w.FinishPart()) Select(head, w);
    });
  }

  SketchPass MakePass(const Head& head) const {
    return SketchPass(p_.layout, p_.group_size, p_.softmax_scale, head.keys, head.queries, head.lse,
                      head.begin, head.end);
  }

  // Blocks of a head that are scored to guess its threshold, evenly spread over all that will be.
  struct Sample {
    int num_blocks = 0;  // 0: no guess is worth it
    int rank = 0;        // the threshold is this one of their scores, from the largest on
    int num_parts() const { return (num_blocks + kSketchBatchBlocks - 1) / kSketchBatchBlocks; }
  };
  int NumScoredBlocks(const Head& head) const {
    return head.blocks ? static_cast<int>(head.blocks->size())
                       : LastBlock(head) - FirstBlock(head) + 1;
  }
  Sample SampleOf(const Head& head) const {
    if (NumTokens(head) == 0) return {};
    const int num_scored = NumScoredBlocks(head);
    const int num_sampled = std::max(kMinSampledBlocks, num_scored / kBlocksPerSampled);
    if (2 * num_sampled > num_scored) return {};
    const float share = static_cast<float>(num_sampled) / static_cast<float>(num_scored);
    const float expected = std::max(head.k, 1) * kPassedPerChosen * share;
    const float rank = expected + std::sqrt(expected);  // few are less certain
    if (2 * rank >= num_sampled * p_.layout.block_size) return {};
    return {.num_blocks = num_sampled, .rank = static_cast<int>(rank) + 1};
  }
  absl::Span<const int32_t> SampledBlocks(const Head& head, const Sample& sample, int part,
                                          BatchOfBlocks* blocks) const {
    const int64_t num_scored = NumScoredBlocks(head);
    const int first = part * kSketchBatchBlocks;
    const int count = std::min(kSketchBatchBlocks, sample.num_blocks - first);
    for (int i = 0; i < count; ++i) {
      const auto at =
          static_cast<int>((2 * (first + i) + 1) * num_scored / (2 * sample.num_blocks));
      (*blocks)[i] = head.blocks ? (*head.blocks)[at] : FirstBlock(head) + at;
    }
    return absl::MakeConstSpan(blocks->data(), count);
  }

  // Gives each head a threshold that about kPassedPerChosen * k of its scores pass.
  void GuessThresholds() {
    int max_parts = 0;
    for (size_t i = 0; i < p_.heads.size(); ++i) {
      Head& head = p_.heads[i];
      head.num_selected = NumTokens(head) == 0 ? 0 : kNotYet;
      if (NumTokens(head) == 0) continue;
      const int num_parts = SampleOf(head).num_parts();
      WorkspaceOf(i).Begin(kEverything, num_parts == 0 ? NumPieces(head) : num_parts);
      max_parts = std::max(max_parts, num_parts);
    }
    const int num_tasks = static_cast<int>(p_.heads.size()) * max_parts;
    pool_.ParallelFor(num_tasks, [&](int task) {
      const int i = task / max_parts, part = task % max_parts;
      const Head& head = p_.heads[i];
      const Sample sample = SampleOf(head);
      if (part >= sample.num_parts()) return;
      const HeadWorkspace w = WorkspaceOf(i);
      ScoreSample(head, w, sample, part, PieceAfterSample(task, num_tasks));
      if (!w.FinishPart()) return;
      const int count = sample.num_blocks * p_.layout.block_size;
      w.Begin(KthLargest(w.scores, count, sample.rank), NumPieces(head));
    });
  }
  // The task of ScanPieces() that the thread begins with whose last task of the sample this one
  // probably is; -1: it has others.
  int PieceAfterSample(int task, int num_tasks) const {
    const int num_threads = pool_.num_threads(), share = std::max(1, num_tasks / num_threads);
    if ((task + 1) % share != 0) return -1;
    return task / share * static_cast<int>(p_.heads.size()) * max_pieces_ / num_threads;
  }
  // `next_piece`: the task of ScanPieces() that the thread does next, or negative.
  void ScoreSample(const Head& head, const HeadWorkspace& w, const Sample& sample, int part,
                   int next_piece) const {
    BatchOfBlocks room;
    const absl::Span<const int32_t> blocks = SampledBlocks(head, sample, part, &room);
    SketchPass pass = MakePass(head);
    pass.TakeBlocks(blocks.data(), static_cast<int>(blocks.size()));
    if (next_piece >= 0) TakeNext(next_piece, &pass);
    float* scores = w.scores + part * kSketchBatchBlocks * p_.layout.block_size;
    const int count = CopyPassed(pass.ScoreBatch(0, kEverything), scores);
    // Tokens outside the range take the places of the worst.
    float* end = scores + blocks.size() * p_.layout.block_size;
    std::fill(scores + count, end, kEverything);
  }

  // Where a piece writes: its place if everything passed.
  int SlotOf(const Head& head, int piece) const {
    const int size = p_.layout.block_size, first = (FirstPiece(head) + piece) * piece_blocks_;
    if (piece == 0) return 0;
    // What of the first block is before the range takes no place.
    const int outside = head.blocks ? head.begin - head.blocks->front() * size : head.begin;
    return piece * kPieceScratch + first * size - std::max(outside, 0);
  }

  // The task that a thread does next as long as it has tasks of its own: what that scores first.
  void TakeNext(int next_task, SketchPass* pass) const {
    const size_t i = next_task / max_pieces_;
    if (i >= p_.heads.size()) return;
    const Head& head = p_.heads[i];
    const int piece = next_task % max_pieces_;
    if (piece >= NumPieces(head)) return;
    if (head.blocks) {
      pass->TakeNextBlocks(
          head.keys,
          head.blocks->subspan(static_cast<size_t>(piece) * piece_blocks_, kSketchScalesAhead));
    } else {
      pass->TakeNextPiece(head.keys, head.begin, head.end, FirstPiece(head) + piece);
    }
  }

  void Collect(const Head& head, const HeadWorkspace& w, int piece, int next_task) const {
    SketchPass pass = MakePass(head);
    if (head.blocks) {
      const absl::Span<const int32_t> blocks =
          head.blocks->subspan(static_cast<size_t>(piece) * piece_blocks_, piece_blocks_);
      pass.TakeBlocks(blocks.data(), static_cast<int>(blocks.size()));
    } else {
      pass.TakePiece(FirstPiece(head) + piece);
    }
    TakeNext(next_task, &pass);
    const int slot = SlotOf(head, piece);
    int count = 0;
    for (int b = 0; b < pass.num_batches(); ++b) {
      count += CollectPassed(pass.ScoreBatch(b, *w.threshold), w.scores + slot + count,
                             w.positions + slot + count);
    }
    w.counts[piece] = count;
  }

  // Moves what the pieces collected together, and returns how much it is.
  int Join(const Head& head, const HeadWorkspace& w) const {
    int count = 0;
    for (int piece = 0; piece < NumPieces(head); ++piece) {
      const int slot = SlotOf(head, piece);
      if (slot != count) {
        std::memmove(w.scores + count, w.scores + slot, w.counts[piece] * sizeof(float));
        std::memmove(w.positions + count, w.positions + slot, w.counts[piece] * sizeof(int32_t));
      }
      count += w.counts[piece];
    }
    return count;
  }

  // Chooses from what passed, unless the threshold was so high that too little did.
  void Select(Head& head, const HeadWorkspace& w) const {
    const int64_t passed = std::accumulate(w.counts, w.counts + NumPieces(head), int64_t{0});
    const bool is_guess = *w.threshold != kEverything;
    if (is_guess && passed < std::min(head.k, SketchScanTokens(p_.layout, head))) return;
    const int count = Join(head, w);
    const int k = TopK(w.scores, count, head.k, head.tokens);
    // NaN passes every threshold: chosen, it stands for numbers that did not.
    const auto is_nan = [&](int32_t i) { return std::isnan(w.scores[i]); };
    if (is_guess && std::any_of(head.tokens, head.tokens + k, is_nan)) return;
    head.num_selected = k;
    for (int i = 0; i < k; ++i) {
      const int at = head.tokens[i];  // >= i
      w.scores[i] = w.scores[at];
      head.tokens[i] = w.positions[at];
    }
    if (head.scores != nullptr) std::copy_n(w.scores, k, head.scores);
  }

  const SketchScanParams& p_;
  ComputePool& pool_;
  const int piece_blocks_;
  int max_pieces_ = 0;
  size_t workspace_stride_ = 0;
};

}  // namespace

int SketchScanTokens(const SketchLayout& layout, const SketchScanParams::Head& head) {
  if (!head.blocks) return NumTokens(head);
  const int size = layout.block_size;
  int64_t n = 0;
  for (const int32_t block : *head.blocks) {
    n += std::min((block + 1) * size, head.end) - std::max(block * size, head.begin);
  }
  return static_cast<int>(n);
}

size_t SketchScanWorkspaceBytes(absl::Span<const SketchScanParams::Head> heads) {
  return heads.size() * HeadWorkspace::LargestBytes(heads);
}

void SketchScan(const SketchScanParams& p, ComputePool& pool) { Scan(p, pool).Run(); }

}  // namespace tokenbutler
