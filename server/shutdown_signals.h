#pragma once

#include <csignal>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace tokenbutler {

// SIGTERM and SIGINT, taken by a thread of their own: the first asks for a drain, the second ends
// the process at once (exit code 128 + signal). SIGHUP is ignored: there is nothing to read again,
// and a terminal that closes must not cut streams off.
class ShutdownSignals {
 public:
  // Ignores SIGHUP; blocks the others in the calling thread and in every thread it starts from now
  // on. REQUIRES: no other thread runs yet. `on_first` is called on the signals' thread.
  explicit ShutdownSignals(std::function<void()> on_first);
  ~ShutdownSignals();
  ShutdownSignals(const ShutdownSignals&) = delete;
  ShutdownSignals& operator=(const ShutdownSignals&) = delete;

  // Waits, without limit, for the first signal.
  void WaitForFirst();

 private:
  void Wait();

  const std::function<void()> on_first_;
  sigset_t signals_;
  Mutex mutex_;
  CondVar received_;
  bool first_received_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tokenbutler
