#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/loaded_runner.h"
#include "tests/testing/temporary_folder.h"
#include "tools/train/teacher.h"
#include "tools/train/token_sequences.h"
#include "tools/train/training_options.h"

namespace tokenbutler {

// The tiny model (tests/testing/tiny_model.h) as a teacher. Throws when it cannot be loaded.
class TinyTeacher {
 public:
  struct Options {
    int num_layers = 5;
    DType dtype = DType::kF32;
    int num_threads = 2;
    std::shared_ptr<const Predictor> predictor = nullptr;
  };
  TinyTeacher() : TinyTeacher(Options{}) {}
  explicit TinyTeacher(const Options& options);

  Teacher& operator*() { return *teacher_; }
  Teacher* operator->() { return teacher_.get(); }
  LoadedRunner& model() { return *model_; }
  const std::string& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  std::string path_;
  ComputePool pool_;
  std::unique_ptr<LoadedRunner> model_;
  std::unique_ptr<Teacher> teacher_;
};

// Sequences of tokens at random in which stretches come again, so that there is something to find.
class RepeatingSequences : public TokenSequences {
 public:
  explicit RepeatingSequences(int length = 96, int num_validation = 2)
      : length_(length), num_validation_(num_validation) {}

  int length() const override { return length_; }
  absl::StatusOr<std::vector<int32_t>> Training(int64_t index) override;
  int num_validation() const override { return num_validation_; }
  absl::StatusOr<std::vector<int32_t>> Validation(int index) override;
  std::string Description() const override { return "random tokens"; }
  std::string Fingerprint() const override { return "random tokens"; }

 private:
  const int length_, num_validation_;
};

// A run of seconds, into `output`.
TrainingOptions TinyTraining(PredictorKind kind, const std::string& output);

// The whole of a file. Throws when it cannot be read.
std::string ReadFile(const std::string& path);

}  // namespace tokenbutler
