#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/served_model.h"

namespace tokenbutler {

// Whether the server takes requests, and with which model: loading -> serving -> draining. Any
// thread.
class Lifecycle {
 public:
  enum class State { kLoading, kServing, kDraining };

  State state() const;

  // The model to serve a new request with. UNAVAILABLE while loading (with a retry delay) and
  // while draining (without: another server should be asked).
  absl::StatusOr<std::shared_ptr<const ServedModel>> Model() const;

  // The model even while draining, for calls that only describe it or end requests; null while
  // loading.
  std::shared_ptr<const ServedModel> ModelIfLoaded() const;

  // Does nothing when draining has begun.
  void SetServing(std::shared_ptr<const ServedModel> model);
  void StartDraining();

 private:
  mutable Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kLoading;
  std::shared_ptr<const ServedModel> model_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tokenbutler
