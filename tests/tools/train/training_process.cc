// A training run in a process of its own: training_process OUTPUT
#include <iostream>

#include "tests/tools/train/training_fixture.h"
#include "tools/train/trainer.h"

int main(int argc, char** argv) {
  using namespace tokenbutler;  // NOLINT(google-build-using-namespace): a program of one function
  if (argc != 2) return 2;
  TinyTeacher teacher;
  RepeatingSequences sequences;
  TrainingOptions options = TinyTraining(PredictorKind::kLookahead, argv[1]);
  options.num_steps = 300;
  options.validate_every = 50;
  auto trainer = Trainer::Create(options, *teacher, sequences, "", {});
  if (!trainer.ok()) {
    std::cerr << trainer.status() << "\n";
    return 1;
  }
  std::cout << "begins at step " << (*trainer)->steps_done() << std::endl;
  const auto result = (*trainer)->Run({});
  if (!result.ok()) std::cerr << result.status() << "\n";
  return result.ok() ? 0 : 1;
}
