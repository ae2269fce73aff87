#include "server/open_streams.h"

#include <utility>

#include "absl/time/clock.h"
#include "base/status.h"
#include "base/status_details.h"
#include "server/stream_writer.h"

namespace tokenbutler {

OpenStreams::OpenStreams(const Clock* clock, absl::Duration check_interval)
    : clock_(clock), watcher_([this, check_interval] { Watch(check_interval); }) {}

OpenStreams::~OpenStreams() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  watcher_.join();
}

absl::Status OpenStreams::Add(std::shared_ptr<StreamWriter> stream) {
  MutexLock lock(&mutex_);
  const std::string& id = stream->request_id();
  if (streams_.emplace(id, stream).second) return absl::OkStatus();
  return WithField(
      AlreadyExistsError("request_id is '{}', which is running already; it must be unique", id),
      "request_id");
}

void OpenStreams::Remove(const std::string& request_id) {
  MutexLock lock(&mutex_);
  streams_.erase(request_id);
  changed_.SignalAll();
}

std::shared_ptr<StreamWriter> OpenStreams::Find(const std::string& request_id) const {
  MutexLock lock(&mutex_);
  const auto it = streams_.find(request_id);
  return it == streams_.end() ? nullptr : it->second;
}

void OpenStreams::EndAll(const absl::Status& reason) {
  for (const auto& stream : Snapshot()) stream->AbortWith(reason);
}

bool OpenStreams::WaitUntilEmpty(absl::Duration timeout) {
  const absl::Time limit = absl::Now() + timeout;
  MutexLock lock(&mutex_);
  while (!streams_.empty()) {
    const absl::Duration left = limit - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitWithTimeout(&mutex_, left);
  }
  return true;
}

std::vector<std::shared_ptr<StreamWriter>> OpenStreams::Snapshot() const {
  std::vector<std::shared_ptr<StreamWriter>> streams;
  MutexLock lock(&mutex_);
  streams.reserve(streams_.size());
  for (const auto& [id, stream] : streams_) streams.push_back(stream);
  return streams;
}

void OpenStreams::Watch(absl::Duration check_interval) {
  while (true) {
    {
      const absl::Time next = absl::Now() + check_interval;
      MutexLock lock(&mutex_);
      while (!stopping_ && absl::Now() < next) {
        changed_.WaitWithTimeout(&mutex_, next - absl::Now());
      }
      if (stopping_) return;
    }
    // Without the lock: a stream that ends calls Remove.
    const absl::Time now = clock_->Now();
    for (const auto& stream : Snapshot()) stream->CheckStall(now);
  }
}

}  // namespace tokenbutler
