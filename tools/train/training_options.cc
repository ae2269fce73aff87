#include "tools/train/training_options.h"

#include <string_view>

namespace tokenbutler {
namespace {

template <typename T>
absl::Status CheckRange(std::string_view field, T value, T least, T most) {
  if (value >= least && value <= most) return absl::OkStatus();  // false for NaN
  return InvalidArgumentError("{} is {}, must be in [{}, {}]", field, value, least, most);
}

}  // namespace

std::string_view TrainedKeysName(TrainedKeys keys) {
  return keys == TrainedKeys::kFull ? "full" : "projected";
}

absl::Status StudentOptions::Validate() const {
  const bool is_lookahead = kind == PredictorKind::kLookahead;
  if (kind == PredictorKind::kPca) {
    return InvalidArgumentError("kind is pca, must be tokenbutler or lookahead");
  }
  RETURN_IF_ERROR(CheckRange("layers_per_predictor", layers_per_predictor, 1, 1024));
  RETURN_IF_ERROR(CheckRange("correction_rank", correction_rank, 0, is_lookahead ? 256 : 0));
  if (!is_lookahead) {
    RETURN_IF_ERROR(CheckRange("hidden_dim", hidden_dim, 1, 1 << 16));
    if (point != LayerPoint::kInput) {
      return InvalidArgumentError("point is {}, must be input for kind tokenbutler",
                                  LayerPointName(point));
    }
  }
  if (keys == TrainedKeys::kProjected) {
    RETURN_IF_ERROR(CheckRange("projected_dim", projected_dim, 4, 128));
    if (projected_dim % 4 == 0) return absl::OkStatus();
    return InvalidArgumentError("projected_dim is {}, must be a multiple of 4", projected_dim);
  }
  if (!is_lookahead || correction_rank == 0) {
    return InvalidArgumentError(
        "keys is full, which trains the correction of lookahead queries alone: kind must be "
        "lookahead, is {}, and correction_rank at least 1, is {}",
        PredictorKindName(kind), correction_rank);
  }
  if (late) return InvalidArgumentError("late is true, must be false with keys full");
  return absl::OkStatus();
}

absl::Status TrainingOptions::Validate() const {
  RETURN_IF_ERROR(student.Validate());
  RETURN_IF_ERROR(CheckRange<int64_t>("num_steps", num_steps, 1, 1'000'000'000));
  RETURN_IF_ERROR(CheckRange("sequences_per_step", sequences_per_step, 1, 1024));
  RETURN_IF_ERROR(CheckRange("rows", rows, 1, 1 << 16));
  RETURN_IF_ERROR(
      CheckRange("steps_per_sequence", steps_per_sequence, 1, sequences_per_step > 1 ? 1 : 64));
  RETURN_IF_ERROR(CheckRange("learning_rate", learning_rate, 1e-8f, 1.0f));
  RETURN_IF_ERROR(CheckRange("warmup", warmup, 0.0f, 1.0f));
  RETURN_IF_ERROR(CheckRange("weight_decay", weight_decay, 0.0f, 1.0f));
  RETURN_IF_ERROR(CheckRange("clip_norm", clip_norm, 0.0f, 1e6f));
  RETURN_IF_ERROR(CheckRange("sink_tokens", sink_tokens, 0, 1 << 20));
  RETURN_IF_ERROR(CheckRange("local_window", local_window, 0, 1 << 20));
  RETURN_IF_ERROR(CheckRange("calibration_sequences", calibration_sequences, 1, 64));
  RETURN_IF_ERROR(CheckRange("validate_every", validate_every, 1, 1 << 30));
  RETURN_IF_ERROR(CheckRange("patience", patience, 0, 1 << 30));
  RETURN_IF_ERROR(CheckRange("checkpoint_every", checkpoint_every, 1, 1 << 30));
  if (output.empty()) return InvalidArgumentError("output is empty, must name a folder");
  return absl::OkStatus();
}

nlohmann::ordered_json TrainingOptions::ToJson() const {
  nlohmann::ordered_json json = {
      {"kind", PredictorKindName(student.kind)},
      {"keys", TrainedKeysName(student.keys)},
      {"layers_per_predictor", student.layers_per_predictor},
      {"point", LayerPointName(student.point)},
      {"late", student.late},
      {"correction_rank", student.correction_rank},
      {"pooling", ScorePoolingName(student.pooling)},
  };
  if (student.keys == TrainedKeys::kProjected) json["projected_dim"] = student.projected_dim;
  if (student.kind == PredictorKind::kTokenButler) {
    json["hidden_dim"] = student.hidden_dim;
    json["input"] = PredictorInputName(student.input);
  }
  json.update({{"num_steps", num_steps},
               {"sequences_per_step", sequences_per_step},
               {"rows", rows},
               {"steps_per_sequence", steps_per_sequence},
               {"learning_rate", learning_rate},
               {"warmup", warmup},
               {"weight_decay", weight_decay},
               {"clip_norm", clip_norm},
               {"sink_tokens", sink_tokens},
               {"local_window", local_window},
               {"calibration_sequences", calibration_sequences},
               {"seed", seed},
               {"validate_every", validate_every},
               {"patience", patience}});
  return json;
}

}  // namespace tokenbutler
