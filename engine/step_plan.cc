#include "engine/step_plan.h"

#include "base/status_details.h"

namespace tokenbutler {

const AttentionProbes& SequenceState::probes() const {
  static const AttentionProbes kNone;
  return kNone;
}

absl::Status ModelRunner::CheckAttention(const AttentionParams& params) const {
  if (!params.sparse()) return absl::OkStatus();
  return WithField(UnimplementedError("attention.policy is \"{}\", must be \"dense\"",
                                      PolicyName(params.policy)),
                   "attention.policy");
}

absl::StatusOr<std::unique_ptr<SequenceState>> ModelRunner::NewState(const AttentionParams& params,
                                                                     int /*max_tokens*/,
                                                                     int /*num_forks*/) {
  RETURN_IF_ERROR(CheckAttention(params));
  return nullptr;
}

absl::StatusOr<std::unique_ptr<SequenceState>> ModelRunner::NewIdleState(
    const AttentionParams& params) {
  return NewState(params, /*max_tokens=*/0, /*num_forks=*/0);
}

absl::StatusOr<std::unique_ptr<SequenceState>> ModelRunner::NewObserver(
    const AttentionParams& params) {
  return NewState(params, /*max_tokens=*/0, /*num_forks=*/0);
}

absl::StatusOr<std::unique_ptr<SequenceState>> ModelRunner::ContinueState(
    const SequenceState& observer, int /*max_tokens*/, int /*num_forks*/) {
  return ForkState(observer);
}

absl::Status ModelRunner::AdoptRows(const BlockTable&, SequenceState*) {
  return InternalError("this runner keeps no states");
}

absl::StatusOr<std::unique_ptr<SequenceState>> ModelRunner::ForkState(const SequenceState&) {
  return InternalError("this runner keeps no states");
}

}  // namespace tokenbutler
