#pragma once

#include <memory>

#include "engine/kernels/projected_keys.h"
#include "engine/predictor/predictor.h"
#include "engine/selection/scanning_selector.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// How keys and queries are projected and what becomes of their products. Letters as in struct
// Predictor; the arrays must outlive the scanner.
struct ProjectedScannerOptions {
  ProjectedLayout layout;
  float scale = 1;  // of the products
  ScorePooling pooling = ScorePooling::kMaxLse;
  // Predicted queries come projected, [H, d'].
  bool predicted_are_projected = false;
  // [L, Hkv, d_h, d']; null: the principal directions of the sequence's own first keys.
  const float* keys = nullptr;
  // [L, H, d_h, d'] for predicted queries and for the layers' own; null: as the keys.
  const float* early = nullptr;
  const float* late = nullptr;
};

// Scores by projected keys (kernels/projected_keys.h), which every full block gets when its last
// row is written, or, where directions are still to be found, when the sequence has enough keys or
// is first scanned. Directions depend on the sequence's first keys alone, not on chunks or on other
// sequences. REQUIRES: layout.IsValid() and block_size as that of the KV blocks.
std::unique_ptr<KeyScanner> NewProjectedScanner(const ProjectedScannerOptions& options,
                                                const KvLayout& layout);

// Keys that directions are found from, when there are so many.
inline constexpr int kCalibrationTokens = 2048;

}  // namespace tokenbutler
