#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/predictor/layer_point.h"
#include "engine/predictor/predictor.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {

// What the predicted queries are scored against.
enum class TrainedKeys : uint8_t {
  kProjected,  // learned projections of the cached keys
  kFull,       // the cached keys themselves: for keys=bits1|2|4, which stand for them
};

std::string_view TrainedKeysName(TrainedKeys keys);  // "projected"

// What the trained predictor is, and what of it is trained. Letters as in struct Predictor.
struct StudentOptions {
  PredictorKind kind = PredictorKind::kLookahead;  // or kTokenButler
  TrainedKeys keys = TrainedKeys::kProjected;      // kFull: kLookahead alone
  int projected_dim = 16;                          // d'; unused with kFull
  int hidden_dim = 128;                            // I; kTokenButler alone
  int layers_per_predictor = 4;                    // G
  // Where of the producer layer the hidden state is taken. kTokenButler: kInput.
  LayerPoint point = LayerPoint::kInput;
  // Which hidden state a producer's MLP reads; kTokenButler alone.
  PredictorInput input = PredictorInput::kBeforeNorm;
  // Also projections of the layers' own queries; not with kFull.
  bool late = true;
  // r of the learned correction of lookahead queries; 0: none. kLookahead alone.
  int correction_rank = 0;
  ScorePooling pooling = ScorePooling::kMaxLse;  // how it is served

  // INVALID_ARGUMENT naming the field, its value and the bound.
  absl::Status Validate() const;
};

// How it is trained. A field is part of a run's identity (a checkpoint is resumed only with the
// same) unless it says otherwise.
struct TrainingOptions {
  StudentOptions student;
  int64_t num_steps = 1000;  // updates
  int sequences_per_step = 1;
  // Queries of each sequence that a step learns from: the last position's and random ones of the
  // last half's.
  int rows = 256;
  // Steps that one pass of the model over a sequence is used for, each with rows of its own: the
  // pass costs several times what a step does of the rest. Above 1 with one sequence per step
  // alone.
  int steps_per_sequence = 4;
  float learning_rate = 1e-3f;  // AdamW's, after the warm-up
  float warmup = 0.1f;          // share of the steps; then a cosine down to 0
  float weight_decay = 0;       // AdamW's; projections start where they should stay near
  float clip_norm = 1;          // of the gradient of all parameters; 0: none
  // Tokens that are attended whatever a predictor says: the loss leaves them out, and a head counts
  // by the attention it pays to the others. 0 and 0: the published loss over all tokens.
  int sink_tokens = 0;
  int local_window = 0;
  int calibration_sequences = 4;  // whose keys the principal directions are found from
  uint64_t seed = 1;
  int validate_every = 50;  // steps; also before the first and after the last one
  int patience = 0;         // validations without a better one that end the run; 0: never
  int checkpoint_every = 50;
  // A folder, made when it is not there: predictor.safetensors (the best so far), checkpoint,
  // log.jsonl. Not part of the identity.
  std::string output;

  absl::Status Validate() const;
  // All that is part of the identity.
  nlohmann::ordered_json ToJson() const;
};

}  // namespace tokenbutler
