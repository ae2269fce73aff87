#include "server/stream_queue.h"

#include <iterator>
#include <utility>

namespace tokenbutler {
namespace {

// Deltas join a waiting one up to this size, far below what clients receive by default (4 MiB).
constexpr size_t kMaxJoinedBytes = size_t{256} << 10;

size_t WireBytes(const StreamEvent& event) {
  constexpr size_t kTokenIdBytes = 4;
  constexpr size_t kLogprobBytes = 24;
  const auto* chunk = std::get_if<OutputChunk>(&event);
  if (chunk == nullptr) return 0;
  size_t logprobs = 0;
  for (const PositionLogprobs& position : chunk->logprobs) logprobs += 1 + position.top.size();
  return chunk->text.size() + chunk->token_ids.size() * kTokenIdBytes + logprobs * kLogprobBytes;
}

void Append(OutputChunk& to, OutputChunk&& from) {
  to.text += from.text;
  to.token_ids.insert(to.token_ids.end(), from.token_ids.begin(), from.token_ids.end());
  to.logprobs.insert(to.logprobs.end(), std::make_move_iterator(from.logprobs.begin()),
                     std::make_move_iterator(from.logprobs.end()));
}

}  // namespace

bool StreamQueue::Push(StreamEvent event) {
  const size_t bytes = WireBytes(event);
  MutexLock lock(&mutex_);
  if (closed_) return true;
  if (!Join(event, bytes)) waiting_.push_back({.event = std::move(event), .bytes = bytes});
  bytes_ += bytes;
  return bytes_ <= max_bytes_;
}

bool StreamQueue::Join(StreamEvent& event, size_t bytes) {
  if (std::holds_alternative<PrefillProgress>(event)) {
    if (waiting_.empty()) return false;
    auto* last = std::get_if<PrefillProgress>(&waiting_.back().event);
    if (last == nullptr) return false;
    *last = std::get<PrefillProgress>(event);
    return true;
  }
  auto* chunk = std::get_if<OutputChunk>(&event);
  if (chunk == nullptr) return false;
  for (auto it = waiting_.rbegin(); it != waiting_.rend(); ++it) {
    auto* waiting = std::get_if<OutputChunk>(&it->event);
    if (waiting == nullptr || waiting->index != chunk->index) continue;
    if (it->bytes >= kMaxJoinedBytes) return false;
    Append(*waiting, std::move(*chunk));
    it->bytes += bytes;
    return true;
  }
  return false;
}

std::optional<StreamEvent> StreamQueue::Pop() {
  MutexLock lock(&mutex_);
  if (waiting_.empty()) return std::nullopt;
  std::optional<StreamEvent> event(std::move(waiting_.front().event));
  bytes_ -= waiting_.front().bytes;
  waiting_.pop_front();
  return event;
}

void StreamQueue::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  waiting_.clear();
  bytes_ = 0;
}

size_t StreamQueue::bytes() const {
  MutexLock lock(&mutex_);
  return bytes_;
}

}  // namespace tokenbutler
