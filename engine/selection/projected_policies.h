#pragma once

#include "engine/selection/policy_spec.h"

namespace tokenbutler {

// `tokenbutler`: keys projected by a trained predictor, scored by the query that it predicts, or
// low-bit keys scored by the layers' own queries taken early.
extern const PolicySpec kTokenButlerPolicy;
// `pca`: keys on their principal directions (Loki, arXiv 2406.02542), scored by the real query.
extern const PolicySpec kPcaPolicy;
// `sketch`: low-bit keys (kernels/key_sketch.h), scored by the real query.
extern const PolicySpec kSketchPolicy;

}  // namespace tokenbutler
