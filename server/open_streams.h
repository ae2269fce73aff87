#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace tokenbutler {

class StreamWriter;

// The Generate calls that are open, by request id; and the thread that looks for stalled ones.
class OpenStreams {
 public:
  // Looks for stalled readers every `check_interval`. `clock` must outlive it.
  OpenStreams(const Clock* clock, absl::Duration check_interval);
  // REQUIRES: empty.
  ~OpenStreams();
  OpenStreams(const OpenStreams&) = delete;
  OpenStreams& operator=(const OpenStreams&) = delete;

  // ALREADY_EXISTS when a call with that id is open.
  absl::Status Add(std::shared_ptr<StreamWriter> stream);
  void Remove(const std::string& request_id);
  // Null when no such call is open.
  std::shared_ptr<StreamWriter> Find(const std::string& request_id) const;

  // Ends every open call with `reason`.
  void EndAll(const absl::Status& reason);
  // Waits until none is open, or until `timeout`. True when none is.
  bool WaitUntilEmpty(absl::Duration timeout);

 private:
  void Watch(absl::Duration check_interval);
  std::vector<std::shared_ptr<StreamWriter>> Snapshot() const;

  const Clock* const clock_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::shared_ptr<StreamWriter>> streams_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace tokenbutler
