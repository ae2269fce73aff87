#pragma once

#include <cstdint>
#include <memory>

#include "engine/kernels/key_sketch.h"
#include "engine/selection/attention_params.h"
#include "engine/selection/scanning_selector.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// What `sketch` keeps of a KV block with these parameters.
SketchLayout SketchLayoutFor(const AttentionParams& params, const KvLayout& layout);

// The most that a scanner works in, for sequences of up to `max_tokens` tokens.
int64_t SketchScannerBytes(const AttentionParams& params, const KvLayout& layout, int num_layers,
                           int max_tokens);

// Scores by low-bit keys (kernels/key_sketch.h), which every full block gets when its last row is
// written. REQUIRES: SketchLayoutFor(...).IsValid().
std::unique_ptr<KeyScanner> NewSketchScanner(const AttentionParams& params, const KvLayout& layout,
                                             int num_layers);

}  // namespace tokenbutler
