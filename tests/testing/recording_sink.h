#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/token_sink.h"

namespace tokenbutler {

// A TokenSink that keeps everything it is told, for tests. The engine thread writes, any thread
// reads copies. `on_event`, when set before Submit, is called on the engine thread after each event
// was kept, with its name ("progress", "prompt_logprobs", "logits", "chunk", "finished", "done").
class RecordingSink : public TokenSink {
 public:
  std::function<void(const std::string& event)> on_event;

  void OnProgress(const PrefillProgress& progress) override {
    Keep("progress", [&] { progress_.push_back(progress); });
  }
  void OnPromptLogprobs(std::vector<PositionLogprobs> logprobs) override {
    Keep("prompt_logprobs", [&] {
      for (PositionLogprobs& position : logprobs) prompt_logprobs_.push_back(std::move(position));
    });
  }
  void OnLogits(int position, absl::Span<const float> logits) override {
    Keep("logits",
         [&] { logits_.emplace_back(position, std::vector<float>(logits.begin(), logits.end())); });
  }
  void OnChunk(const OutputChunk& chunk) override {
    Keep("chunk", [&] { chunks_.push_back(chunk); });
  }
  void OnFinished(FinishedOutput output) override {
    Keep("finished", [&] { finished_.push_back(std::move(output)); });
  }
  void OnDone(absl::Status status) override {
    Keep("done", [&] { done_.push_back(std::move(status)); });
  }

  // True when OnDone came before `timeout`.
  bool WaitDone(absl::Duration timeout = absl::Seconds(60)) const {
    return Wait(timeout, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !done_.empty(); });
  }
  bool WaitChunks(size_t count, absl::Duration timeout = absl::Seconds(60)) const {
    return Wait(timeout,
                [this, count]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return chunks_.size() >= count; });
  }

  std::vector<PrefillProgress> progress() const { return Copy(progress_); }
  std::vector<PositionLogprobs> prompt_logprobs() const { return Copy(prompt_logprobs_); }
  std::vector<std::pair<int, std::vector<float>>> logits() const { return Copy(logits_); }
  std::vector<OutputChunk> chunks() const { return Copy(chunks_); }
  std::vector<FinishedOutput> finished() const { return Copy(finished_); }
  std::vector<std::string> events() const { return Copy(events_); }
  // How often OnDone came, and with what the first time; UNKNOWN before.
  size_t num_done() const {
    MutexLock lock(&mutex_);
    return done_.size();
  }
  absl::Status status() const {
    MutexLock lock(&mutex_);
    if (done_.empty()) return absl::UnknownError("not done");
    return done_[0];
  }
  // Everything that completion `index` said.
  std::string text(int index = 0) const {
    std::string text;
    for (const OutputChunk& chunk : chunks()) {
      if (chunk.index == index) text += chunk.text;
    }
    return text;
  }
  std::vector<int32_t> token_ids(int index = 0) const {
    std::vector<int32_t> ids;
    for (const OutputChunk& chunk : chunks()) {
      if (chunk.index == index) {
        ids.insert(ids.end(), chunk.token_ids.begin(), chunk.token_ids.end());
      }
    }
    return ids;
  }

 private:
  template <typename Fn>
  void Keep(const char* event, const Fn& keep) {
    {
      MutexLock lock(&mutex_);
      keep();
      events_.emplace_back(event);
      changed_.SignalAll();
    }
    if (on_event) on_event(event);
  }
  template <typename T>
  T Copy(const T& kept) const {
    MutexLock lock(&mutex_);
    return kept;
  }
  template <typename Fn>
  bool Wait(absl::Duration timeout, const Fn& condition) const {
    const absl::Time limit = absl::Now() + timeout;
    MutexLock lock(&mutex_);
    while (!condition()) {
      const absl::Duration left = limit - absl::Now();
      if (left <= absl::ZeroDuration()) return false;
      changed_.WaitWithTimeout(&mutex_, left);
    }
    return true;
  }

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::vector<PrefillProgress> progress_;
  std::vector<PositionLogprobs> prompt_logprobs_;
  std::vector<std::pair<int, std::vector<float>>> logits_;
  std::vector<OutputChunk> chunks_;
  std::vector<FinishedOutput> finished_;
  std::vector<absl::Status> done_;
  std::vector<std::string> events_;
};

}  // namespace tokenbutler
