#pragma once

#include <csignal>

#include "base/mutex.h"
#include "grpcpp/client_context.h"

namespace tokenbutler {

// Ctrl-C (and SIGTERM): cancels the call in progress, or ends the program when there is none.
// A thread of its own takes the signals; it lives as long as the process.
class Interrupt {
 public:
  // REQUIRES: no other thread runs yet; one per process.
  Interrupt();

  // While it lives, Ctrl-C cancels `context`.
  class Cancels {
   public:
    Cancels(Interrupt* interrupt, grpc::ClientContext* context);
    ~Cancels();
    Cancels(const Cancels&) = delete;
    Cancels& operator=(const Cancels&) = delete;

   private:
    Interrupt* const interrupt_;
  };

 private:
  void Set(grpc::ClientContext* context);

  sigset_t signals_;
  Mutex mutex_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace tokenbutler
