#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "nlohmann/json.hpp"
#include "tools/train/aligned_floats.h"

namespace tokenbutler {

// Where a run stands: all that its future depends on beside its options and sequences.
struct TrainingCheckpoint {
  int64_t step = 0;          // steps done
  double seconds = 0;        // that they took
  uint64_t log_bytes = 0;    // of the log as it was
  bool is_finished = false;  // nothing is left to do
  bool stopped_early = false;
  int64_t best_step = 0;
  float first_loss = 0, best_loss = 0;        // of validations
  AlignedFloats values, best_values;          // of the parameters
  AlignedFloats first_moment, second_moment;  // of the optimiser; empty before the first step

  // Writes a file that replaces the one before, whole or not at all; errors of WriteFileDurably.
  // `identity`: what a run must have in common to go on from it.
  //
  // The file is a line of JSON (format, identity, the numbers above, the arrays' sizes), then the
  // arrays as float32, in the order above, then the SHA-256 of all that in hexadecimal digits.
  absl::Status Write(const std::string& path, const nlohmann::ordered_json& identity) const;

  // Nothing when there is no file. FAILED_PRECONDITION naming a field in which the identities
  // differ; DATA_LOSS when the file is damaged, INVALID_ARGUMENT when it is no checkpoint.
  static absl::StatusOr<std::optional<TrainingCheckpoint>> Read(
      const std::string& path, const nlohmann::ordered_json& identity);
};

}  // namespace tokenbutler
