#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "absl/types/span.h"
#include "base/status.h"
#include "engine/predictor/predictor.h"

namespace tokenbutler {

// A predictor file is a .safetensors file whose metadata say what it is (all values are strings;
// other keys are allowed and ignored):
//
//   format "tokenbutler-predictor", format_version "1", kind, projected_dim, pooling,
//   layers_per_predictor, hidden_dim and input (kind tokenbutler), lookahead_point and
//   correction_rank (kind lookahead), late_projections "true"|"false",
//   model_sha256 (one or more ModelDigest(), separated by commas), and the fingerprint of the
//   architecture: architecture, num_layers, hidden_size, intermediate_size, num_heads,
//   num_kv_heads, head_dim, qkv_bias, rms_norm_eps, rope_attention_factor,
//   rope_inverse_frequencies (separated by commas)
//
// and whose tensors (F32 or BF16) are
//
//   key_projection [L, Hkv, d_h, d'], early_projection and late_projection [L, H, d_h, d'],
//   producers.N.norm.weight and .bias [E], .input.weight [I, E], .output.weight [G * H * d', I],
//   query_correction.down [L, r, E] and .up [L, H * d_h, r]
//
// with the letters and the meaning of struct Predictor.

// Errors of SafetensorsFile::Open; INVALID_ARGUMENT naming metadata key or tensor, what it is and
// what it must be; UNIMPLEMENTED for another format_version. Messages start with the path.
absl::StatusOr<Predictor> ReadPredictor(const std::string& path);
absl::StatusOr<Predictor> ParsePredictor(absl::Span<const std::byte> bytes);

// The bytes of a predictor file. Projections are stored as `projection_dtype` (kF32 or kBF16).
// `more` joins the metadata: learning rates, seeds, figures. INVALID_ARGUMENT from Validate(), or
// when `more` has a key of the format's own.
absl::StatusOr<std::string> PredictorFileBytes(const Predictor& predictor,
                                               DType projection_dtype = DType::kBF16,
                                               const std::map<std::string, std::string>& more = {});
// Writes them to a new file beside `path` that then takes its place: a reader sees the old file or
// the new one, whole. UNAVAILABLE with the system's reason.
absl::Status WritePredictor(const std::string& path, const Predictor& predictor,
                            DType projection_dtype = DType::kBF16,
                            const std::map<std::string, std::string>& more = {});

// What stands for a model's files in `model_sha256`: the SHA-256 of a .gguf file, or of the one
// weights file of a folder. For several files (shards): that of the text that `sha256sum` prints
// for them, in the order of their names. Reads them whole. NOT_FOUND when there are none.
absl::StatusOr<std::string> ModelDigest(const std::string& model_path);

// FAILED_PRECONDITION naming the difference when the model has another architecture; errors of
// Validate().
absl::Status CheckArchitecture(const Predictor& predictor, const ModelFingerprint& model);

// Whether a predictor may serve a model. OK for the model files it was validated with. For other
// files of the same architecture OK with `allow_unchecked`, else FAILED_PRECONDITION;
// FAILED_PRECONDITION naming the difference for another architecture. `digest` is called when it
// is needed.
absl::Status CheckPredictorFits(const Predictor& predictor, const ModelFingerprint& model,
                                const std::function<absl::StatusOr<std::string>()>& digest,
                                bool allow_unchecked);

}  // namespace tokenbutler
