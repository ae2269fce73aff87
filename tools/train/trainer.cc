#include "tools/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <new>
#include <utility>

#include "engine/predictor/predictor_file.h"
#include "tools/train/key_directions.h"
#include "tools/train/sampled_rows.h"

namespace tokenbutler {
namespace {

// Rows of validation sequences have a seed of their own.
constexpr uint64_t kValidationRows = 0x76616c6964617465;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t ModelParameters(const ModelWeights& weights) {
  int64_t count = 0;
  const auto add = [&](const TensorView& view) {
    if (view.data != nullptr)
      count += static_cast<int64_t>(view.num_bytes() / DTypeBytes(view.dtype));
  };
  add(weights.token_embedding);
  add(weights.final_norm);
  if (weights.lm_head.data != weights.token_embedding.data) add(weights.lm_head);
  for (const LayerWeights& w : weights.layers) {
    for (const TensorView* view :
         {&w.input_norm, &w.q_proj, &w.k_proj, &w.v_proj, &w.q_bias, &w.k_bias, &w.v_bias,
          &w.o_proj, &w.o_bias, &w.post_attention_norm, &w.gate_proj, &w.up_proj, &w.gate_bias,
          &w.up_bias, &w.down_proj, &w.down_bias}) {
      add(*view);
    }
  }
  return count;
}

// Early and late ones added, mean over layers.
float MeanLoss(absl::Span<const LayerLoss> losses) {
  double sum = 0;
  for (const LayerLoss& loss : losses) sum += loss.early + loss.late;
  return static_cast<float>(sum / static_cast<double>(losses.size()));
}

absl::Status CheckSequences(const TokenSequences& sequences, const Teacher& teacher) {
  const int length = sequences.length();
  const int longest = std::min(teacher.max_tokens(), teacher.model().config->max_position);
  if (length < 2 || length > longest) {
    return InvalidArgumentError(
        "sequences have {} tokens, must have 2 to {}: the model's context, and the teacher's room",
        length, longest);
  }
  if (sequences.num_validation() < 1) {
    return InvalidArgumentError("there are 0 validation sequences, must be at least 1");
  }
  return absl::OkStatus();
}

// As the other functions' errors.
absl::Status StatusOf(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return ResourceExhaustedError("out of memory in training: fewer rows or shorter sequences");
  }
  return InternalError("LibTorch failed in training: {}", error.what());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(
    const TrainingOptions& options, Teacher& teacher, TokenSequences& sequences,
    const std::string& model_sha256, const std::map<std::string, std::string>& metadata) {
  RETURN_IF_ERROR(options.Validate());
  RETURN_IF_ERROR(CheckSequences(sequences, teacher));
  auto trainer = std::unique_ptr<Trainer>(new Trainer(options, teacher, sequences));
  trainer->metadata_ = metadata;
  trainer->model_sha256_ = model_sha256;
  trainer->identity_ = options.ToJson();
  trainer->identity_.update({{"model_sha256", model_sha256},
                             {"tokens_per_sequence", sequences.length()},
                             {"sequences", sequences.Fingerprint()}});
  try {
    RETURN_IF_ERROR(trainer->Start());
  } catch (const std::exception& error) {
    return StatusOf(error);
  }
  return trainer;
}

absl::Status Trainer::Start() {
  std::error_code error;
  std::filesystem::create_directories(options_.output, error);
  if (error) return UnavailableError("{} cannot be made: {}", options_.output, error.message());
  ASSIGN_OR_RETURN(std::optional<TrainingCheckpoint> checkpoint,
                   TrainingCheckpoint::Read(Path("checkpoint"), identity_));
  const StudentOptions& wanted = options_.student;
  const ModelConfig& config = *teacher_.model().config;
  std::vector<float> directions;
  if (wanted.keys == TrainedKeys::kProjected && wanted.projected_dim <= config.head_dim) {
    if (checkpoint.has_value()) {
      directions.resize(static_cast<size_t>(config.num_layers) * config.num_kv_heads *
                        config.head_dim * wanted.projected_dim);
    } else {
      ASSIGN_OR_RETURN(directions,
                       FindKeyDirections(teacher_, sequences_, options_.calibration_sequences,
                                         wanted.projected_dim));
    }
  }
  ASSIGN_OR_RETURN(
      student_, NewStudent(wanted, teacher_.model(), teacher_.pool(), directions, options_.seed));
  if (checkpoint.has_value()) {
    AlignedFloats& values = student_->parameters().all_values();
    if (checkpoint->values.size() != values.size()) {
      return DataLossError("{} has {} values, must have {}", Path("checkpoint"),
                           checkpoint->values.size(), values.size());
    }
    state_ = *std::move(checkpoint);
    std::copy(state_.values.begin(), state_.values.end(), values.begin());
    optimiser_.state() = {.num_updates = state_.step,
                          .first_moment = std::move(state_.first_moment),
                          .second_moment = std::move(state_.second_moment)};
  }
  ASSIGN_OR_RETURN(TrainingLog log, TrainingLog::Open(Path("log.jsonl"), state_.log_bytes));
  log_ = std::make_unique<TrainingLog>(std::move(log));
  return absl::OkStatus();
}

absl::Status Trainer::Teach(const std::vector<int32_t>& tokens, uint64_t rows_seed, uint64_t index,
                            int num_steps) {
  taught_ = -1;
  const int num_tokens = static_cast<int>(tokens.size());
  return teacher_.Run(tokens,
                      {.rows = SampleRows(num_tokens, options_.rows * num_steps, rows_seed, index),
                       .point = options_.student.point,
                       .layers_per_predictor = options_.student.layers_per_predictor},
                      &pass_);
}

absl::Status Trainer::TeachStep(int64_t index, int step) {
  if (taught_ != index) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, sequences_.Training(index));
    RETURN_IF_ERROR(
        Teach(tokens, options_.seed, static_cast<uint64_t>(index), options_.steps_per_sequence));
    taught_ = index;
  }
  // All steps' rows lie as widely; the last ones' have the last position. A short sequence may have
  // too few for all steps.
  const size_t count = static_cast<size_t>(options_.steps_per_sequence);
  const size_t num_parts = std::min(count, pass_.rows.size());
  pass_.Take(static_cast<size_t>(step) % num_parts, num_parts, &rows_);
  return absl::OkStatus();
}

std::vector<LayerLoss> Trainer::RunRows(bool with_gradients) {
  student_->Forward(rows_);
  std::vector<ScoredLayer> layers(student_->layers().begin(), student_->layers().end());
  if (!with_gradients) {
    for (ScoredLayer& layer : layers) {
      layer.key_projection_gradients = nullptr;
      for (ScoredQueries* queries : {&layer.early, &layer.late}) {
        queries->projection_gradients = queries->query_gradients = nullptr;
      }
    }
  }
  // The gradient is that of the mean over rows, heads, layers and sequences.
  const double count = static_cast<double>(rows_.rows.size()) * teacher_.model().config->num_heads *
                       static_cast<double>(layers.size()) * options_.sequences_per_step;
  std::vector<LayerLoss> losses = loss_.Run(rows_, layers,
                                            {.key_dim = student_->key_dim(),
                                             .scale = student_->score_scale(),
                                             .sink_tokens = options_.sink_tokens,
                                             .local_window = options_.local_window,
                                             .gradient_scale = static_cast<float>(1 / count)});
  if (with_gradients) student_->Backward(rows_);
  return losses;
}

absl::Status Trainer::Step(TrainingEvent* event) {
  Parameters& parameters = student_->parameters();
  AlignedFloats& gradients = parameters.all_gradients();
  std::fill(gradients.begin(), gradients.end(), 0.0f);
  event->loss = 0;
  for (int i = 0; i < options_.sequences_per_step; ++i) {
    const int64_t sequence =
        state_.step / options_.steps_per_sequence * options_.sequences_per_step + i;
    RETURN_IF_ERROR(
        TeachStep(sequence, static_cast<int>(state_.step % options_.steps_per_sequence)));
    event->loss += MeanLoss(RunRows(/*with_gradients=*/true)) /
                   static_cast<float>(options_.sequences_per_step);
  }
  const double norm = Norm(gradients);
  if (!std::isfinite(event->loss) || !std::isfinite(norm)) {
    return InternalError(
        "step {}: the loss is {}, the norm of the gradients {}, must be finite; a lower learning "
        "rate than {} may help",
        state_.step + 1, event->loss, norm, options_.learning_rate);
  }
  if (options_.clip_norm > 0 && norm > options_.clip_norm) {
    const auto factor = static_cast<float>(options_.clip_norm / norm);
    for (float& gradient : gradients) gradient *= factor;
  }
  event->gradient_norm = static_cast<float>(norm);
  event->learning_rate =
      LearningRateAt(state_.step, options_.num_steps, options_.warmup, options_.learning_rate);
  optimiser_.Update(event->learning_rate, gradients, &parameters.all_values());
  ++state_.step;
  return absl::OkStatus();
}

absl::Status Trainer::Validate(TrainingEvent* event) {
  event->kind = TrainingEvent::Kind::kValidation;
  std::vector<LayerLoss> sums(student_->layers().size());
  const int count = sequences_.num_validation();
  for (int i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, sequences_.Validation(i));
    RETURN_IF_ERROR(Teach(tokens, kValidationRows, static_cast<uint64_t>(i), /*num_steps=*/1));
    pass_.Take(0, 1, &rows_);
    const std::vector<LayerLoss> losses = RunRows(/*with_gradients=*/false);
    for (size_t l = 0; l < sums.size(); ++l) {
      sums[l].early += losses[l].early / count;
      sums[l].late += losses[l].late / count;
    }
  }
  event->loss = MeanLoss(sums);
  if (!std::isfinite(event->loss)) {
    return InternalError("step {}: the validation loss is {}, must be finite", state_.step,
                         event->loss);
  }
  for (size_t l = 0; l < sums.size(); ++l) {
    const ScoredLayer& layer = student_->layers()[l];
    LayerKl kl;
    kl.layer = layer.layer;
    if (layer.early.queries != nullptr) kl.early = static_cast<float>(sums[l].early);
    if (layer.late.queries != nullptr) kl.late = static_cast<float>(sums[l].late);
    event->layers.push_back(kl);
  }
  const bool is_first = state_.best_values.empty();
  if (is_first) state_.first_loss = event->loss;
  event->is_best = is_first || event->loss < state_.best_loss;
  if (event->is_best) {
    state_.best_loss = event->loss;
    state_.best_step = state_.step;
    state_.best_values = student_->parameters().all_values();
    RETURN_IF_ERROR(WritePredictorFile());
  }
  return absl::OkStatus();
}

absl::Status Trainer::Report(TrainingEvent event, double started, const Progress& progress) {
  state_.seconds += Now() - started;
  event.step = state_.step;
  event.seconds = state_.seconds;
  RETURN_IF_ERROR(log_->Add(event));
  if (progress.on_event) progress.on_event(event);
  return absl::OkStatus();
}

absl::StatusOr<TrainingResult> Trainer::RunSteps(const Progress& progress) {
  if (state_.best_values.empty()) {
    const double started = Now();
    TrainingEvent event;
    RETURN_IF_ERROR(log_->Add(nlohmann::ordered_json{
        {"type", "run"}, {"options", identity_}, {"data", sequences_.Description()}}));
    RETURN_IF_ERROR(Validate(&event));
    RETURN_IF_ERROR(Report(event, started, progress));
  } else if (std::error_code error;
             !std::filesystem::exists(Path("predictor.safetensors"), error)) {
    RETURN_IF_ERROR(WriteBestPredictorFile());  // somebody took it away
  }
  int64_t last_checkpoint = state_.step;
  while (!state_.is_finished) {
    if (progress.stop != nullptr && progress.stop->load()) {
      RETURN_IF_ERROR(WriteCheckpoint());
      break;
    }
    double started = Now();
    TrainingEvent event;
    RETURN_IF_ERROR(Step(&event));
    RETURN_IF_ERROR(Report(event, started, progress));
    state_.is_finished = state_.step == options_.num_steps;
    if (state_.is_finished || state_.step % options_.validate_every == 0) {
      started = Now();
      TrainingEvent validation;
      RETURN_IF_ERROR(Validate(&validation));
      RETURN_IF_ERROR(Report(validation, started, progress));
      const int64_t since_best = state_.step - state_.best_step;
      state_.stopped_early = !state_.is_finished && options_.patience > 0 &&
                             since_best >= int64_t{options_.patience} * options_.validate_every;
      state_.is_finished = state_.is_finished || state_.stopped_early;
    }
    if (state_.is_finished || state_.step - last_checkpoint >= options_.checkpoint_every) {
      RETURN_IF_ERROR(WriteCheckpoint());
      last_checkpoint = state_.step;
    }
  }
  return Result();
}

absl::StatusOr<TrainingResult> Trainer::Run(const Progress& progress) {
  try {
    return RunSteps(progress);
  } catch (const std::exception& error) {
    return StatusOf(error);
  }
}

TrainingResult Trainer::Result() const {
  return {.steps = state_.step,
          .is_finished = state_.is_finished,
          .stopped_early = state_.stopped_early,
          .best_step = state_.best_step,
          .first_loss = state_.first_loss,
          .best_loss = state_.best_loss,
          .seconds = state_.seconds};
}

absl::Status Trainer::WriteCheckpoint() {
  state_.log_bytes = log_->bytes();
  state_.values = student_->parameters().all_values();
  AdamW::State& optimiser = optimiser_.state();
  // Lent for the writing.
  std::swap(state_.first_moment, optimiser.first_moment);
  std::swap(state_.second_moment, optimiser.second_moment);
  absl::Status status = state_.Write(Path("checkpoint"), identity_);
  std::swap(state_.first_moment, optimiser.first_moment);
  std::swap(state_.second_moment, optimiser.second_moment);
  return status;
}

absl::Status Trainer::WriteBestPredictorFile() {
  AlignedFloats& values = student_->parameters().all_values();
  AlignedFloats now = values;
  values = state_.best_values;
  absl::Status status = WritePredictorFile();
  values = std::move(now);
  return status;
}

absl::Status Trainer::WritePredictorFile() const {
  Predictor predictor = student_->Export();
  if (!model_sha256_.empty()) predictor.model_sha256 = {model_sha256_};
  std::map<std::string, std::string> more = metadata_;
  const nlohmann::ordered_json options = options_.ToJson();
  for (const auto& [key, value] : options.items()) {
    more["training." + key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  more["training.data"] = sequences_.Description();
  more["training.tokens_per_sequence"] = fmt::format("{}", sequences_.length());
  more["training.steps_done"] = fmt::format("{}", state_.best_step);
  more["training.seconds"] = fmt::format("{:.0f}", state_.seconds);
  more["training.kl_before"] = fmt::format("{:.5g}", state_.first_loss);
  more["training.kl"] = fmt::format("{:.5g}", state_.best_loss);
  return WritePredictor(Path("predictor.safetensors"), predictor, DType::kBF16, more);
}

absl::StatusOr<TrainingEstimate> Trainer::Estimate() {
  TrainingEstimate estimate;
  const Parameters& parameters = student_->parameters();
  estimate.num_parameters = static_cast<int64_t>(parameters.num_values());
  estimate.num_model_parameters = ModelParameters(*teacher_.model().weights);
  try {
    double teaching = 0, learning = 0, validating = 0;
    // The first time takes memory, and is slower than what follows.
    for (int i = 0; i < 2; ++i) {
      const double started = Now();
      taught_ = -1;
      RETURN_IF_ERROR(TeachStep(0, 0));
      teaching = Now() - started;
      RunRows(/*with_gradients=*/true);
      learning = Now() - started - teaching;
      RunRows(/*with_gradients=*/false);
      validating = Now() - started - learning;
    }
    estimate.seconds_per_step =
        (teaching / options_.steps_per_sequence + learning) * options_.sequences_per_step;
    const int64_t validations = options_.num_steps / options_.validate_every + 2;
    estimate.seconds = estimate.seconds_per_step * static_cast<double>(options_.num_steps) +
                       validating * static_cast<double>(validations * sequences_.num_validation());
  } catch (const std::exception& error) {
    return StatusOf(error);
  }
  constexpr int kArrays = 6;  // values, gradients, two moments, the best, a checkpoint's copy
  estimate.memory_bytes = static_cast<int64_t>(
      kArrays * parameters.all_values().size() * sizeof(float) + pass_.bytes() + rows_.bytes() +
      loss_.bytes() + student_->bytes() + teacher_.kv_bytes());
  return estimate;
}

}  // namespace tokenbutler
