#include "tools/cli/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tools/cli/exit_code.h"

namespace tokenbutler {

Interrupt::Interrupt() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  std::thread([this] {
    while (true) {
      int signal = 0;
      if (sigwait(&signals_, &signal) != 0) continue;
      MutexLock lock(&mutex_);
      if (context_ == nullptr) std::_Exit(kExitInterrupted);
      context_->TryCancel();
    }
  }).detach();
}

void Interrupt::Set(grpc::ClientContext* context) {
  MutexLock lock(&mutex_);
  context_ = context;
}

Interrupt::Cancels::Cancels(Interrupt* interrupt, grpc::ClientContext* context)
    : interrupt_(interrupt) {
  interrupt_->Set(context);
}

Interrupt::Cancels::~Cancels() { interrupt_->Set(nullptr); }

}  // namespace tokenbutler
