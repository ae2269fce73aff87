#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"
#include "nlohmann/json.hpp"
#include "tools/train/training_events.h"

namespace tokenbutler {

// log.jsonl: a line per event, for plots. The first says what the run is:
//   {"type": "run", "options": {...}, "data": "..."}
//   {"type": "step", "step": 1, "seconds": 0.9, "loss": 1.2, "learning_rate": 1e-5,
//    "gradient_norm": 0.3}
//   {"type": "validation", "step": 50, "seconds": 60.1, "loss": 0.8, "is_best": true,
//    "layers": [1, 2, ...], "early": [0.4, ...], "late": [0.2, ...]}
// Losses are nats. `early` and `late` go with `layers`; null where there are none.
class TrainingLog {
 public:
  // Goes on after the first `bytes` of the file: what follows was written behind a checkpoint.
  // UNAVAILABLE with the system's reason.
  static absl::StatusOr<TrainingLog> Open(const std::string& path, uint64_t bytes);

  absl::Status Add(const nlohmann::ordered_json& line);
  absl::Status Add(const TrainingEvent& event);
  uint64_t bytes() const { return bytes_; }

 private:
  TrainingLog(std::string path, uint64_t bytes) : path_(std::move(path)), bytes_(bytes) {}

  std::string path_;
  uint64_t bytes_;
};

}  // namespace tokenbutler
