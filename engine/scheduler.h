#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/engine_config.h"
#include "engine/sequence.h"
#include "engine/step_plan.h"
#include "offload/block_pool.h"

namespace tokenbutler {

// What one step runs, and whose it is: plan.decode[i] is the next token of decode[i],
// plan.prefill_chunks[c] a chunk of prefill[c]'s prompt. Valid until the next Schedule().
struct ScheduledStep {
  StepPlan plan;
  std::vector<Sequence*> decode;
  std::vector<RequestState*> prefill;

  bool empty() const { return decode.empty() && prefill.empty(); }
};

// Decides who waits, who runs and what each step computes. Sees the control plane only: tokens and
// blocks, never bytes, logits or sinks. Engine thread only; owns none of the requests.
//
// Queue. Ordered by arrival minus priority * priority_step, then by submission: first come, first
// served within a priority; a higher priority goes first among requests of about the same age, and
// every request goes before all that come more than (difference of priorities) * priority_step
// after it, so none waits for ever.
// Admission takes all blocks that a request can use and n of the max_num_seqs places. A request
// that does not fit now lets those behind it pass, max_overtakes of them; after that nothing behind
// it is admitted, what runs drains, and it gets its turn.
//
// Step. Every decoding sequence runs its next token. Beside them at most prefill_chunk_tokens of
// prefill: chunks [k * size, (k + 1) * size) of each prompt, whatever else runs. The prompt served
// longest ago goes first, newcomers as if served one step before the last, so a short prompt waits
// for at most one chunk of each prompt before it. Chunks of higher priority go first, except in
// every kFairPrefillInterval-th step with prefill, which knows no priorities: lower ones keep that
// share at least.
class Scheduler {
 public:
  static constexpr int kFairPrefillInterval = 8;

  // `pool` must outlive this. REQUIRES: config.Validate().ok().
  Scheduler(const EngineConfig& config, BlockPool* pool);

  // Puts a request into the queue. REQUIRES: CheckAdmissible found its footprint to fit the pool.
  void Enqueue(RequestState* request);

  // Takes blocks and places for the waiting requests that fit; returns those, in order. Valid until
  // the next Admit().
  absl::Span<RequestState* const> Admit();

  // Takes an admission back: there was no room for the request's state. It waits where it was, and
  // is tried again when something was released or came. REQUIRES: admitted by the last Admit().
  void PutBack(RequestState* request);

  // Lays out the next step of the admitted requests; `now` is noted as the start of those whose
  // first chunk it holds. After Admit(), empty only if nothing waits or runs.
  const ScheduledStep& Schedule(absl::Time now);

  // A sequence needs its state and blocks no more. Its place is free from now on.
  void Release(Sequence* sequence);

  // Makes the rows of a prompt that is prefilled those of request->hold, which the caller takes out
  // of the request then. REQUIRES: an only sequence, not released yet.
  void Hold(RequestState* request);
  // Gives back what a held prompt owns. REQUIRES: nobody continues it.
  void Release(HeldPrompt* prompt);

  // Forgets a request, wherever it is, and releases all its sequences.
  void Remove(RequestState* request);

  // Appends the requests whose deadline, or whose time in the queue, is over.
  void CollectExpired(absl::Time now, std::vector<RequestState*>* expired);

  bool idle() const { return waiting_.empty() && running_.empty(); }
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  int num_running() const { return static_cast<int>(running_.size()); }
  int64_t waiting_prompt_tokens() const { return waiting_prompt_tokens_; }
  // Requests that had to wait because their blocks were not free, each counted once.
  // Footprint::reserved_blocks of all that runs or is held.
  int num_reserved_blocks() const { return num_reserved_blocks_; }
  int64_t num_failed_to_fit() const { return num_failed_to_fit_; }

 private:
  struct GoesFirst {
    bool operator()(const RequestState* a, const RequestState* b) const;
  };

  bool TryAdmit(RequestState* request);
  void TakeBlocks(RequestState* request);
  void ReleaseBlocks(Sequence* sequence);
  // What a request has beside its sequences.
  void ReleaseOthers(RequestState* request);
  void ReleaseReserved(std::vector<BlockId>* blocks);
  // `count` blocks, the first `num_shared` of them those of `first`.
  void Take(int count, int num_shared, const std::vector<BlockId>& first,
            std::vector<BlockId>* blocks);
  void PlanDecode();
  void PlanPrefill(absl::Time now);
  void AddChunk(RequestState* request, int num_tokens, absl::Time now);

  const EngineConfig config_;
  BlockPool* const pool_;
  std::set<RequestState*, GoesFirst> waiting_;
  int64_t waiting_prompt_tokens_ = 0;
  absl::Time next_queue_expiry_ = absl::InfiniteFuture();  // no waiting request expires before
  std::vector<RequestState*> running_;                     // in the order of admission
  int num_places_taken_ = 0;                               // of max_num_seqs
  bool may_admit_ = false;  // something came or left since the last look at the queue
  int64_t num_failed_to_fit_ = 0;
  int num_reserved_blocks_ = 0;
  uint64_t step_number_ = 1;
  uint64_t num_prefill_steps_ = 0;
  ScheduledStep step_;
  std::vector<RequestState*> candidates_;  // working memory of PlanPrefill
  std::vector<RequestState*> admitted_;    // by the last Admit
  std::vector<RequestState*> passed_;      // working memory of Admit
};

}  // namespace tokenbutler
