#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/predictor/fingerprint.h"
#include "engine/predictor/layer_point.h"

namespace tokenbutler {

// What a predictor file holds (docs/predictor_files.md).
enum class PredictorKind : uint8_t {
  kTokenButler,  // producer MLPs and projections (arXiv 2503.07518)
  kLookahead,    // the layers' own queries, taken early: projected, corrected, or both
  kPca,          // the keys' principal directions
};

// How the logits of the query heads that share a KV head become one score.
enum class ScorePooling : uint8_t {
  kMaxLogit,     // the largest raw logit (the published method: one loud head dominates)
  kMaxLse,       // the largest logit - lse, lse being that of the head's last attention
  kMaxSoftmax,   // the largest share of the softmax over the scored tokens
  kMeanSoftmax,  // their mean
};

// Which hidden state of its layer a producer reads.
enum class PredictorInput : uint8_t { kBeforeNorm, kAfterNorm };

std::string_view PredictorKindName(PredictorKind kind);  // "tokenbutler"
absl::StatusOr<PredictorKind> ParsePredictorKind(std::string_view name);
std::string_view ScorePoolingName(ScorePooling pooling);  // "max_softmax"
absl::StatusOr<ScorePooling> ParseScorePooling(std::string_view name);
std::string_view PredictorInputName(PredictorInput input);  // "before_norm"
absl::StatusOr<PredictorInput> ParsePredictorInput(std::string_view name);

// A matrix as its file stores it: kBF16 or kF32, row-major.
struct PredictorMatrix {
  DType dtype = DType::kBF16;
  std::vector<std::byte> bytes;

  static PredictorMatrix FromFloats(const std::vector<float>& values, DType dtype);
};

// One producer: LayerNorm(E, weight and bias, epsilon 1e-5) -> Linear(E -> I) -> SiLU ->
// Linear(I -> G * H * d'), the result being [G, H, d'], slot by slot. Producer p reads the hidden
// state that enters layer p * G; slot s gives the queries of layer p * G + 1 + s.
struct PredictorProducer {
  std::vector<float> norm_weight, norm_bias;  // [E]
  PredictorMatrix input;                      // [I, E]
  PredictorMatrix output;                     // [G * H * d', I]

  static constexpr float kNormEpsilon = 1e-5f;
};

// A trained (or computed) predictor, ready for use. Immutable once read; any thread.
//
// Letters: L layers, H query heads, Hkv KV heads, d_h head dimension, E hidden size of the model;
// d' projected_dim, I hidden_dim, G layers_per_predictor, r correction_rank.
struct Predictor {
  PredictorKind kind = PredictorKind::kTokenButler;
  // d': 4 ... 128, a multiple of 4. 0: nothing is projected, and the predictor serves low-bit keys
  // alone; kLookahead with a correction.
  int projected_dim = 16;
  int hidden_dim = 0;            // I; kTokenButler alone
  int layers_per_predictor = 4;  // G; not kPca
  ScorePooling pooling = ScorePooling::kMaxSoftmax;
  PredictorInput input = PredictorInput::kBeforeNorm;  // kTokenButler alone
  // Where of the producer layer lookahead queries take the hidden state. kLookahead alone.
  LayerPoint lookahead_point = LayerPoint::kInput;
  int correction_rank = 0;  // r: 0 (none) ... 256; kLookahead alone
  ModelFingerprint fingerprint;
  // ModelDigest() of each model that the predictor was validated with.
  std::vector<std::string> model_sha256;

  std::vector<float> key_projection;  // [L, Hkv, d_h, d']; empty when d' is 0
  // Of lookahead queries, [L, H, d_h, d']; empty: as the late ones, or as the keys. kLookahead
  // alone.
  std::vector<float> early_projection;
  // Of the layers' own queries, [L, H, d_h, d']; empty: as the early ones (kLookahead), as the keys
  // (kPca), or there are none (kTokenButler).
  std::vector<float> late_projection;
  std::vector<PredictorProducer> producers;  // [ceil((L - 1) / G)]; kTokenButler alone
  // What is added to layer l's early query before RoPE: up[l] down[l] norm[l](h). Layer 0's are not
  // used: nothing is early for it.
  PredictorMatrix correction_down;  // [L, r, E]
  PredictorMatrix correction_up;    // [L, H * d_h, r]

  int num_producers() const {
    return (fingerprint.num_layers - 1 + layers_per_predictor - 1) / layers_per_predictor;
  }
  bool has_projections() const { return projected_dim > 0; }
  // What the logits q'.k' are multiplied by: 1 / sqrt(d') where projections were trained so,
  // 1 / sqrt(d_h) where they are orthogonal. REQUIRES: has_projections().
  float score_scale() const;
  // Bounds of the numbers above. INVALID_ARGUMENT naming the field, its value and the bound.
  absl::Status ValidateNumbers() const;
  // The same and the sizes of all arrays.
  absl::Status Validate() const;
};

}  // namespace tokenbutler
