#include "server/shutdown_signals.h"

#include <pthread.h>

#include <cstdlib>
#include <utility>

#include "base/logging.h"

namespace tokenbutler {

ShutdownSignals::ShutdownSignals(std::function<void()> on_first) : on_first_(std::move(on_first)) {
  std::signal(SIGHUP, SIG_IGN);
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = std::thread([this] { Wait(); });
}

ShutdownSignals::~ShutdownSignals() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void ShutdownSignals::WaitForFirst() {
  MutexLock lock(&mutex_);
  while (!first_received_) received_.Wait(&mutex_);
}

void ShutdownSignals::Wait() {
  while (true) {
    int signal = 0;
    if (sigwait(&signals_, &signal) != 0) continue;
    bool is_first = false;
    {
      MutexLock lock(&mutex_);
      if (stopping_) return;
      is_first = !std::exchange(first_received_, true);
      received_.SignalAll();
    }
    const char* name = signal == SIGTERM ? "SIGTERM" : "SIGINT";
    if (!is_first) {
      LogWarning("{} again: ending at once", name);
      std::_Exit(128 + signal);
    }
    LogInfo("{}: shutting down; once more ends at once", name);
    on_first_();
  }
}

}  // namespace tokenbutler
