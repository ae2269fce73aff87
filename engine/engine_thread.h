#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/engine.h"
#include "engine/held_prompt.h"
#include "engine/scheduler.h"
#include "engine/step_commit.h"

namespace tokenbutler {

// The Engine: one thread whose loop is schedule, run, commit, and a mailbox in front of it.
//
// Ownership. A RequestState is created by Submit, kept in active_ until the request is over, and
// touched by the engine thread only in between. Other threads leave notes (new requests, aborts)
// under mutex_, which the engine thread takes once per step and never holds while it runs a step or
// calls a sink.
//
// A request that is over leaves in this order: its last OnFinished; blocks and place released;
// counters, gauges and load() updated; its id free for a new request; OnDone; the sink let go of;
// WaitUntilIdle told. So whoever saw OnDone sees true numbers.
//
// A step that fails is run again item by item: the rows an item writes are its own, so running it
// twice is harmless, and only the requests whose items fail alone end with INTERNAL.
class EngineThread final : public Engine {
 public:
  // REQUIRES: config and parts were checked (Engine::Create).
  EngineThread(const EngineConfig& config, const Parts& parts);
  ~EngineThread() override;

  absl::Status Submit(GenerationRequest request, std::shared_ptr<TokenSink> sink) override;
  bool Abort(const std::string& request_id, absl::Status reason) override;
  bool DropPrompt(const std::string& name) override;
  absl::StatusOr<BlockTable> HeldBlocks(const std::string& name) const override;
  EngineLoad load() const override;
  void StartDraining() override;
  bool WaitUntilIdle(absl::Duration timeout) override;
  void AbortAll(absl::Status reason) override;

 private:
  struct Active {
    std::unique_ptr<RequestState> state;
    bool aborting = false;  // a note about it is under way
  };
  using AbortNote = std::pair<RequestState*, absl::Status>;

  absl::StatusOr<Footprint> CheckFootprint(const GenerationRequest& request,
                                           const HeldPrompt* prefix) const;
  absl::Status Enqueue(GenerationRequest request, const absl::StatusOr<Footprint>& footprint,
                       std::shared_ptr<const HeldPrompt> prefix, std::shared_ptr<TokenSink> sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckQueue(const GenerationRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteAbort(Active* active, const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The engine thread's part.
  void Loop();
  bool TakeMail();  // waits while there is nothing to do; false: shut down
  void EndExpired();
  // Admits what fits, and makes the states of sparse sequences. A request for whose states the
  // device tier has no room now goes on waiting; one whose states cannot be made ends alone.
  void AdmitRequests();
  void RunStep(const ScheduledStep& step);
  void RunAlone(const ScheduledStep& step);
  void LetGoOfEnded();
  void LetGo(RequestState* request);
  // Gives back the blocks of dropped prompts that nobody continues any more.
  void ReleaseDropped();
  void PublishLoad();

  const EngineConfig config_;
  const Parts parts_;
  const AdmissionLimits limits_;

  // Engine thread only.
  Scheduler scheduler_;
  StepCommitter committer_;
  StepPlan single_;  // one item of a step that failed
  std::vector<RequestState*> new_requests_;
  std::vector<AbortNote> aborts_;
  std::vector<RequestState*> expired_;
  int64_t num_failed_to_fit_ = 0;  // as last published

  mutable Mutex mutex_;
  CondVar wake_;  // the engine thread: mail has come
  CondVar idle_;  // WaitUntilIdle: num_unfinished_ is 0
  std::unordered_map<std::string, Active> active_ ABSL_GUARDED_BY(mutex_);  // by request_id
  HeldPrompts prompts_ ABSL_GUARDED_BY(mutex_);
  bool mail_drops_ ABSL_GUARDED_BY(mutex_) = false;  // a prompt was dropped
  std::vector<RequestState*> mail_requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<AbortNote> mail_aborts_ ABSL_GUARDED_BY(mutex_);
  int64_t mail_prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  EngineLoad load_ ABSL_GUARDED_BY(mutex_);
  int num_unfinished_ ABSL_GUARDED_BY(mutex_) = 0;  // requests whose OnDone has not returned
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  std::mt19937_64 seeds_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: runs on all of the above
};

}  // namespace tokenbutler
