#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace tokenbutler {

// The third part of the engine's loop: turns a step's logits into tokens, tokens into chunks, and
// tells the sinks. Decides when a sequence is over; a request that is over lands in ended() with
// its status, for the engine to let go of. Engine thread only.
//
// Nothing is allocated per token here beyond log-probabilities and what the first steps grow: a
// chunk's memory is used for the next one.
class StepCommitter {
 public:
  // The parts and the scheduler must outlive this.
  StepCommitter(const Engine::Parts& parts, const AdmissionLimits& limits, Scheduler* scheduler);

  // Everything of a step that ran. REQUIRES: the runner's logits are those of `step`.
  void Commit(const ScheduledStep& step);
  // One item of a step, for steps whose items were run alone.
  void CommitDecode(Sequence* sequence, absl::Span<const float> logits);
  void CommitChunk(RequestState* request, const StepItem& chunk, absl::Span<const float> logits);

  // A request whose whole prompt is in the KV cache already goes on with what comes after it.
  void SkipPrefill(RequestState* request);

  // Ends a request before its time. OK: its unfinished sequences are finished as cancelled, with
  // what text they held back. Does nothing when it is over already.
  void Abort(RequestState* request, const absl::Status& reason);

  // Requests that are over, their `end` set, in that order; the caller empties it.
  std::vector<RequestState*>& ended() { return ended_; }

 private:
  // Working memory of one of the threads that sample.
  struct Workspace {
    SamplingScratch scratch;
    std::vector<float> logits;  // [vocab_size], what the sampler may overwrite
  };

  absl::StatusOr<SampledToken> Sample(Sequence* sequence, absl::Span<const float> logits,
                                      Workspace* workspace) const;
  void SampleDecode(const ScheduledStep& step);

  // Tells the metrics what the sequence's attention has done since they were last told.
  void CountAttention(Sequence* sequence) const;

  void StartDecoding(RequestState* request, absl::Span<const float> logits);
  absl::Status Fork(RequestState* request);
  absl::Status CreateSamplers(RequestState* request) const;
  void SendProgress(const RequestState& request) const;
  void SendPromptLogprobs(RequestState* request, const StepItem& chunk,
                          absl::Span<const float> logits);

  // False unless the token that was run is one of the prompt with more to come: the next is next.
  bool CommitPromptToken(Sequence* sequence) const;
  void CommitScored(Sequence* sequence, absl::Span<const float> logits);
  void CommitSampled(Sequence* sequence, const absl::StatusOr<SampledToken>& sampled);
  void RecordToken(Sequence* sequence);
  void FlushAndFinish(Sequence* sequence, const StopEvent& reason);
  FinishedOutput MakeFinishedOutput(const Sequence& sequence, const StopEvent& stop) const;
  void Finish(Sequence* sequence, const StopEvent& stop);
  void End(RequestState* request, absl::Status status);

  const Engine::Parts parts_;
  const AdmissionLimits limits_;
  Scheduler* const scheduler_;
  absl::Time now_;  // of the step being committed
  std::vector<Workspace> workspaces_;
  std::vector<absl::StatusOr<SampledToken>> samples_;  // of the step's decode items
  std::vector<RequestState*> ended_;
};

}  // namespace tokenbutler
