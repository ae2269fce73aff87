#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "nlohmann/json.hpp"
#include "tools/train/adamw.h"
#include "tools/train/distillation_loss.h"
#include "tools/train/student.h"
#include "tools/train/teacher.h"
#include "tools/train/token_sequences.h"
#include "tools/train/training_checkpoint.h"
#include "tools/train/training_events.h"
#include "tools/train/training_log.h"
#include "tools/train/training_options.h"

namespace tokenbutler {

// What a run will take: parameters counted, memory added up, one step measured.
struct TrainingEstimate {
  int64_t num_parameters = 0;        // of the predictor
  int64_t num_model_parameters = 0;  // of the base model
  int64_t memory_bytes = 0;          // beside the model's weights
  double seconds_per_step = 0;
  double seconds = 0;  // of the whole run, validations included
};

struct TrainingResult {
  int64_t steps = 0;                    // done
  bool is_finished = false;             // false: it was told to stop, and can be resumed
  bool stopped_early = false;           // patience ran out
  int64_t best_step = 0;                // that the predictor file is of
  float first_loss = 0, best_loss = 0;  // of validations, as TrainingEvent::loss
  double seconds = 0;                   // that it took, resumed parts included
};

// Distils a predictor into options.output: a run from its first step, or from its checkpoint, to
// predictor.safetensors, which is always the best one so far. One thread, the teacher's.
class Trainer {
 public:
  struct Progress {
    // Told of every step and validation, whose lines log.jsonl has by then.
    std::function<void(const TrainingEvent&)> on_event = nullptr;
    // Looked at before every step; true: the run ends after a checkpoint.
    const std::atomic<bool>* stop = nullptr;
  };

  // Gets ready to start or, when the output folder has a checkpoint, to go on from it: the weights
  // will then be, bit for bit, those of a run that was never interrupted, with as many threads or
  // not. `teacher` and `sequences` must outlive the trainer. `model_sha256` (ModelDigest) and
  // `metadata` go into the predictor file.
  // INVALID_ARGUMENT naming the option, or what of the model or the sequences does not go with the
  // others; FAILED_PRECONDITION naming the difference when the checkpoint is of another run;
  // DATA_LOSS when it is damaged; UNAVAILABLE for a folder that cannot be made.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      const TrainingOptions& options, Teacher& teacher, TokenSequences& sequences,
      const std::string& model_sha256, const std::map<std::string, std::string>& metadata);

  // Of the run as it was found: 0 for a new one.
  int64_t steps_done() const { return state_.step; }

  // Measures a step that changes nothing.
  absl::StatusOr<TrainingEstimate> Estimate();

  // Trains until all steps are done, nothing gets better any more, or `progress` says stop.
  // INTERNAL naming the step when loss or gradients are no longer finite; UNAVAILABLE or
  // RESOURCE_EXHAUSTED when a file cannot be written. The last checkpoint is kept in any case.
  absl::StatusOr<TrainingResult> Run(const Progress& progress);

 private:
  Trainer(const TrainingOptions& options, Teacher& teacher, TokenSequences& sequences)
      : options_(options),
        teacher_(teacher),
        sequences_(sequences),
        loss_(teacher, teacher.pool()),
        optimiser_(options.weight_decay) {}

  // The student at its start, or where the checkpoint left it.
  absl::Status Start();
  std::string Path(const char* name) const { return options_.output + "/" + name; }

  absl::StatusOr<TrainingResult> RunSteps(const Progress& progress);
  absl::Status Step(TrainingEvent* event);
  absl::Status Validate(TrainingEvent* event);
  absl::Status Report(TrainingEvent event, double started, const Progress& progress);
  // The model's pass over a sequence, with as many rows as `num_steps` steps take.
  absl::Status Teach(const std::vector<int32_t>& tokens, uint64_t rows_seed, uint64_t index,
                     int num_steps);
  // What step `step` learns from of sequence `index`, to rows_.
  absl::Status TeachStep(int64_t index, int step);
  // The divergences over rows_, with gradients added to the student's or without.
  std::vector<LayerLoss> RunRows(bool with_gradients);
  absl::Status WriteCheckpoint();
  // Of the student as it is.
  absl::Status WritePredictorFile() const;
  // Of the best values that the checkpoint has.
  absl::Status WriteBestPredictorFile();
  TrainingResult Result() const;

  const TrainingOptions options_;
  Teacher& teacher_;
  TokenSequences& sequences_;
  std::map<std::string, std::string> metadata_;
  std::string model_sha256_;
  nlohmann::ordered_json identity_;
  std::unique_ptr<Student> student_;
  DistillationLoss loss_;
  AdamW optimiser_;
  TeacherPass pass_;
  TeacherPass rows_;          // of pass_, those of a step
  int64_t taught_ = -1;       // the training sequence that pass_ is of; -1: none
  TrainingCheckpoint state_;  // arrays: best_values alone is always there
  std::unique_ptr<TrainingLog> log_;
};

}  // namespace tokenbutler
