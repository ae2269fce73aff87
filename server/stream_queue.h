#pragma once

#include <cstddef>
#include <vector>

#include "base/mutex.h"
#include "engine/token_sink.h"

namespace tokenbutler {

// One thing that a stream has to tell its client. Only the part that `kind` names means anything;
// the chunk's memory stays, whatever comes meanwhile, and there is some from the beginning.
struct StreamEvent {
  enum class Kind { kProgress, kPromptLogprobs, kChunk, kFinished };

  StreamEvent();

  Kind kind = Kind::kProgress;
  PrefillProgress progress;
  std::vector<PositionLogprobs> prompt_logprobs;
  OutputChunk chunk;
  FinishedOutput finished;
};

// The bounded queue between the engine thread, which must not wait, and one client, which may be
// slow. Deltas of one completion join while they wait, and only the newest progress is kept, so
// that a slow client costs few messages and no time of others. Events are copied into places that
// are there from the beginning and whose memory is used again, so that pushing a token allocates
// nothing until the client is further behind than it ever was (and log-probabilities, which are
// lists of their own). Knows neither gRPC nor protobuf. Any thread.
class StreamQueue {
 public:
  // `max_bytes` of chunks may wait. Prompt log-probabilities do not count: they come at once and
  // the prompt bounds them. There is room for what `num_completions` have to tell a client that
  // keeps up.
  explicit StreamQueue(size_t max_bytes, int num_completions = 1);

  // False when more than max_bytes wait now: the client is too far behind. The event is kept all
  // the same. After Close it is dropped, and the answer is true.
  bool Push(const OutputChunk& chunk);
  bool Push(const PrefillProgress& progress);
  bool Push(std::vector<PositionLogprobs> logprobs);
  bool Push(FinishedOutput output);

  // Exchanges `event` for the oldest one: the queue goes on with the chunk memory that `event` had.
  // False when none waits.
  bool Pop(StreamEvent* event);

  // Nobody will read any more: drops what waits and what still comes.
  void Close();

  // Bytes of chunks that wait, about as they are on the wire.
  size_t bytes() const;

 private:
  struct Waiting {
    StreamEvent event;
    size_t bytes = 0;
  };

  // The i-th oldest waiting event.
  Waiting& At(size_t i) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ring_[(first_ + i) % ring_.size()];
  }
  // The event of a place after the youngest, with whatever an earlier one left in it.
  StreamEvent& Append(StreamEvent::Kind kind, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the chunk to a waiting one of its completion; false: there is none that has room.
  bool Join(const OutputChunk& chunk, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_bytes_;
  mutable Mutex mutex_;
  std::vector<Waiting> ring_ ABSL_GUARDED_BY(mutex_);
  size_t first_ ABSL_GUARDED_BY(mutex_) = 0;  // the oldest event's place
  size_t num_waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tokenbutler
