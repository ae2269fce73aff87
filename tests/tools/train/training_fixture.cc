#include "tests/tools/train/training_fixture.h"

#include <fstream>
#include <iterator>
#include <stdexcept>

#include "engine/counter_rng.h"
#include "tests/testing/tiny_model.h"

namespace tokenbutler {

TinyTeacher::TinyTeacher(const Options& options)
    : path_(folder_.path() / "tiny"), pool_(options.num_threads) {
  WriteTinyModel(path_, options.num_layers);
  LoadedRunner::Options load{.compute_dtype = options.dtype, .num_blocks = 32};
  load.runner.predictor = options.predictor;
  auto model = LoadedRunner::Load(path_, load);
  if (!model.ok()) throw std::runtime_error(std::string(model.status().message()));
  model_ = *std::move(model);
  teacher_ = std::make_unique<Teacher>(model_->runner(), model_->kv_store(), pool_,
                                       /*chunk_tokens=*/40);
}

absl::StatusOr<std::vector<int32_t>> RepeatingSequences::Training(int64_t index) {
  constexpr int kTokens = 200, kStretch = 12;
  std::vector<int32_t> tokens;
  for (uint32_t i = 0; tokens.size() < static_cast<size_t>(length_); ++i) {
    const double draw = UniformAt(static_cast<uint64_t>(index), 0, i);
    if (draw < 0.1 && tokens.size() > kStretch) {
      const auto from =
          static_cast<size_t>(draw * 10 * static_cast<double>(tokens.size() - kStretch));
      for (int k = 0; k < kStretch; ++k) tokens.push_back(tokens[from + k]);
    }
    tokens.push_back(static_cast<int32_t>(draw * kTokens));
  }
  tokens.resize(static_cast<size_t>(length_));
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> RepeatingSequences::Validation(int index) {
  return Training(1'000'000 + index);
}

TrainingOptions TinyTraining(PredictorKind kind, const std::string& output) {
  TrainingOptions options;
  options.student.kind = kind;
  options.student.projected_dim = 8;
  options.student.hidden_dim = 12;
  options.student.layers_per_predictor = 2;
  options.student.correction_rank = kind == PredictorKind::kLookahead ? 2 : 0;
  options.num_steps = 40;
  options.rows = 24;
  options.learning_rate = 1e-2f;
  options.calibration_sequences = 2;
  options.validate_every = 10;
  options.checkpoint_every = 10;
  options.output = output;
  return options;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace tokenbutler
