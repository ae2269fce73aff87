#include "tools/eval/tasks/fit_length.h"

#include <algorithm>
#include <utility>

namespace tokenbutler {

absl::StatusOr<TaskSample> FitLength(const PromptFormat& format, int min_units,
                                     const std::function<TaskSample(int num_units)>& make) {
  TaskSample best = make(min_units);
  const int limit = best.context_len - best.max_tokens;
  ASSIGN_OR_RETURN(const int least, format.CountTokens(best));
  if (least > limit) {
    return InvalidArgumentError(
        "context_len is {}, {} needs at least {} ({} of prompt, {} of answer)", best.context_len,
        best.task, least + best.max_tokens, least, best.max_tokens);
  }
  // Doubles until it does not fit, then halves the step.
  int fits = min_units;
  const auto try_units = [&](int units) -> absl::StatusOr<bool> {
    TaskSample sample = make(units);
    ASSIGN_OR_RETURN(const int tokens, format.CountTokens(sample));
    if (tokens > limit) return false;
    fits = units;
    best = std::move(sample);
    return true;
  };
  int step = std::max(1, min_units);
  for (bool grows = true; grows; step *= 2) {
    ASSIGN_OR_RETURN(grows, try_units(fits + step));
  }
  // The last step, doubled, was too long.
  for (step /= 4; step > 0; step /= 2) {
    RETURN_IF_ERROR(try_units(fits + step).status());
  }
  return best;
}

}  // namespace tokenbutler
