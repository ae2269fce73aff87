#pragma once

#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "engine/engine.h"

namespace tokenbutler {

// An Engine without a model: every index of a request gets one scripted token per step until
// max_tokens. It keeps Engine's promises (aborts, deadlines, gauges, order of events) and records
// the metrics that are the engine's.
class FakeEngine : public Engine {
 public:
  struct Options {
    int max_running = 1024;  // requests; more wait
    absl::Duration step;     // pause between two steps
    int prefill_steps = 1;   // before the first token
    std::string token_text = "tok ";
  };

  FakeEngine(Options options, const Clock* clock, Metrics* metrics);
  ~FakeEngine() override;

  // What the next Submit calls answer; OK again with absl::OkStatus().
  void RefuseWith(absl::Status status);
  // While held, no step runs.
  void Hold(bool hold);
  void SetStep(absl::Duration step);
  // Requests handed in so far, refused ones left out.
  int num_submitted() const;
  GenerationRequest last_request() const;

  absl::Status Submit(GenerationRequest request, std::shared_ptr<TokenSink> sink) override;
  bool Abort(const std::string& request_id, absl::Status reason) override;
  // Holds no prompts.
  bool DropPrompt(const std::string&) override { return false; }
  absl::StatusOr<BlockTable> HeldBlocks(const std::string& name) const override {
    return NotFoundError("no prompt is held as \"{}\"", name);
  }
  EngineLoad load() const override;
  void StartDraining() override;
  bool WaitUntilIdle(absl::Duration timeout) override;
  void AbortAll(absl::Status reason) override;

 private:
  enum class Stage { kQueue, kPrefill, kDecode };
  struct Active {
    GenerationRequest request;
    std::shared_ptr<TokenSink> sink;
    Stage stage = Stage::kQueue;
    int steps_in_prefill = 0;
    int num_tokens = 0;
    std::optional<absl::Status> abort;  // guarded by FakeEngine::mutex_
  };

  void Loop();
  void Step();
  // Advances one request; true when it is over.
  bool Advance(Active& active, int num_running);
  void Prefill(Active& active);
  void Decode(Active& active);
  void End(Active& active, FinishReason reason, absl::Status status);
  void CountDeadline(Stage stage);

  const Clock* const clock_;
  Metrics* const metrics_;
  mutable Mutex mutex_;
  CondVar changed_;
  Options options_ ABSL_GUARDED_BY(mutex_);
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  std::list<Active> active_ ABSL_GUARDED_BY(mutex_);  // elements: engine thread, but for `abort`
  GenerationRequest last_request_ ABSL_GUARDED_BY(mutex_);
  int num_submitted_ ABSL_GUARDED_BY(mutex_) = 0;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tokenbutler
