#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/train/token_sequences.h"
#include "tools/train/training_options.h"

namespace tokenbutler {

class Teacher;

// Divergence of the student's softmax from the teacher's, in nats, mean over rows and heads.
struct LayerKl {
  int layer = 0;
  float early = 0;  // of the predicted queries; 0 where the layer has none
  float late = 0;   // of its own queries; 0 where they are not projected
};

// What a step or a validation has given; each is also a line of log.jsonl.
struct TrainingEvent {
  enum class Kind { kStep, kValidation };
  Kind kind = Kind::kStep;
  int64_t step = 0;             // steps done
  double seconds = 0;           // since the run began, resumed parts included
  float loss = 0;               // KL in nats, mean over layers; early and late ones added
  float learning_rate = 0;      // kStep
  float gradient_norm = 0;      // kStep; before clipping
  bool is_best = false;         // kValidation
  std::vector<LayerKl> layers;  // kValidation
};

// What a run will take: parameters counted, memory added up, one step measured.
struct TrainingEstimate {
  int64_t num_parameters = 0;  // of the predictor file
  int64_t num_trained = 0;     // of them, those that are trained
  int64_t num_model_parameters = 0;
  int64_t memory_bytes = 0;  // beside the model's weights
  double seconds_per_step = 0;
  double seconds = 0;  // of the whole run, validations included
};

struct TrainingResult {
  int64_t steps = 0;           // done
  bool is_finished = false;    // false: it was told to stop and can be resumed
  bool stopped_early = false;  // patience ran out
  int64_t best_step = 0;
  float first_loss = 0, best_loss = 0;  // of validations
  double seconds = 0;
};

// Distils a predictor: the run from the first step, or from its checkpoint, to the file. One
// thread, that of the teacher.
class Trainer {
 public:
  struct Progress {
    std::function<void(const TrainingEvent&)> on_event = nullptr;
    // Looked at after every step; true: the run ends after a checkpoint.
    const std::atomic<bool>* stop = nullptr;
  };

  // `teacher` and `sequences` must outlive the trainer. `model_sha256` and `metadata` go into the
  // predictor file. INVALID_ARGUMENT for options, or a model or sequences that do not go with them.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      const TrainingOptions& options, Teacher& teacher, TokenSequences& sequences,
      const std::string& model_sha256, const std::map<std::string, std::string>& metadata);
  ~Trainer();

  // Runs one step, changing nothing, to measure.
  absl::StatusOr<TrainingEstimate> Estimate();

  // Trains. Resumes when the output folder has a checkpoint: the weights are then, bit for bit,
  // those of a run that was never interrupted (on the same machine, with as many threads or not).
  // FAILED_PRECONDITION naming the difference when the checkpoint is of another run; DATA_LOSS when
  // it is damaged; INTERNAL with the step when loss or gradients are no longer finite, and
  // UNAVAILABLE when a file cannot be written: the last checkpoint is kept in both cases.
  absl::StatusOr<TrainingResult> Run(const Progress& progress);

 private:
  struct State;
  explicit Trainer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tokenbutler
