#include "server/lifecycle.h"

#include <utility>

#include "base/status.h"
#include "base/status_details.h"

namespace tokenbutler {

Lifecycle::State Lifecycle::state() const {
  MutexLock lock(&mutex_);
  return state_;
}

absl::StatusOr<std::shared_ptr<const ServedModel>> Lifecycle::Model() const {
  MutexLock lock(&mutex_);
  switch (state_) {
    case State::kLoading:
      return WithRetryDelay(UnavailableError("the server is loading its model"), absl::Seconds(1));
    case State::kServing:
      return model_;
    case State::kDraining:
      break;
  }
  return UnavailableError("the server is draining and takes no new requests");
}

std::shared_ptr<const ServedModel> Lifecycle::ModelIfLoaded() const {
  MutexLock lock(&mutex_);
  return model_;
}

void Lifecycle::SetServing(std::shared_ptr<const ServedModel> model) {
  MutexLock lock(&mutex_);
  model_ = std::move(model);
  if (state_ == State::kLoading) state_ = State::kServing;
}

void Lifecycle::StartDraining() {
  MutexLock lock(&mutex_);
  state_ = State::kDraining;
}

}  // namespace tokenbutler
