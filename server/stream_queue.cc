#include "server/stream_queue.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tokenbutler {
namespace {

// Deltas join a waiting one up to this size, far below what clients receive by default (4 MiB).
constexpr size_t kMaxJoinedBytes = size_t{256} << 10;

// Memory of a new event's chunk, in tokens and bytes: what a few steps have to say.
constexpr size_t kReservedTokens = 64;
constexpr size_t kReservedTextBytes = 512;

size_t WireBytes(const OutputChunk& chunk) {
  constexpr size_t kTokenIdBytes = 4;
  constexpr size_t kLogprobBytes = 24;
  size_t logprobs = 0;
  for (const PositionLogprobs& position : chunk.logprobs) logprobs += 1 + position.top.size();
  return chunk.text.size() + chunk.token_ids.size() * kTokenIdBytes + logprobs * kLogprobBytes;
}

}  // namespace

StreamEvent::StreamEvent() {
  chunk.text.reserve(kReservedTextBytes);
  chunk.token_ids.reserve(kReservedTokens);
}

// Progress, and for each completion a chunk and its end.
StreamQueue::StreamQueue(size_t max_bytes, int num_completions)
    : max_bytes_(max_bytes), ring_(1 + 2 * static_cast<size_t>(num_completions)) {}

StreamEvent& StreamQueue::Append(StreamEvent::Kind kind, size_t bytes) {
  if (num_waiting_ == ring_.size()) {
    // The oldest first, then free places.
    std::rotate(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(first_), ring_.end());
    first_ = 0;
    ring_.resize(std::max<size_t>(4, 2 * ring_.size()));
  }
  Waiting& place = At(num_waiting_++);
  place.bytes = bytes;
  place.event.kind = kind;
  return place.event;
}

bool StreamQueue::Push(const OutputChunk& chunk) {
  const size_t bytes = WireBytes(chunk);
  MutexLock lock(&mutex_);
  if (closed_) return true;
  // Into the strings and vectors of the chunk that was there.
  if (!Join(chunk, bytes)) Append(StreamEvent::Kind::kChunk, bytes).chunk = chunk;
  bytes_ += bytes;
  return bytes_ <= max_bytes_;
}

bool StreamQueue::Join(const OutputChunk& chunk, size_t bytes) {
  for (size_t i = num_waiting_; i-- > 0;) {
    Waiting& place = At(i);
    OutputChunk& waiting = place.event.chunk;
    if (place.event.kind != StreamEvent::Kind::kChunk || waiting.index != chunk.index) continue;
    if (place.bytes >= kMaxJoinedBytes) return false;
    waiting.text += chunk.text;
    waiting.token_ids.insert(waiting.token_ids.end(), chunk.token_ids.begin(),
                             chunk.token_ids.end());
    waiting.logprobs.insert(waiting.logprobs.end(), chunk.logprobs.begin(), chunk.logprobs.end());
    place.bytes += bytes;
    return true;
  }
  return false;
}

bool StreamQueue::Push(const PrefillProgress& progress) {
  MutexLock lock(&mutex_);
  if (closed_) return true;
  constexpr StreamEvent::Kind kKind = StreamEvent::Kind::kProgress;
  const bool newer = num_waiting_ > 0 && At(num_waiting_ - 1).event.kind == kKind;
  (newer ? At(num_waiting_ - 1).event : Append(kKind, 0)).progress = progress;
  return bytes_ <= max_bytes_;
}

bool StreamQueue::Push(std::vector<PositionLogprobs> logprobs) {
  MutexLock lock(&mutex_);
  if (!closed_) {
    Append(StreamEvent::Kind::kPromptLogprobs, 0).prompt_logprobs = std::move(logprobs);
  }
  return bytes_ <= max_bytes_;
}

bool StreamQueue::Push(FinishedOutput output) {
  MutexLock lock(&mutex_);
  if (!closed_) Append(StreamEvent::Kind::kFinished, 0).finished = std::move(output);
  return bytes_ <= max_bytes_;
}

bool StreamQueue::Pop(StreamEvent* event) {
  MutexLock lock(&mutex_);
  if (num_waiting_ == 0) return false;
  Waiting& oldest = At(0);
  std::swap(*event, oldest.event);
  oldest.event.prompt_logprobs = {};  // never used again, and may be large
  bytes_ -= oldest.bytes;
  first_ = (first_ + 1) % ring_.size();
  --num_waiting_;
  return true;
}

void StreamQueue::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  ring_ = {};
  first_ = num_waiting_ = bytes_ = 0;
}

size_t StreamQueue::bytes() const {
  MutexLock lock(&mutex_);
  return bytes_;
}

}  // namespace tokenbutler
