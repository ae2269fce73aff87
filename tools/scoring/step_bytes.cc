#include "tools/scoring/step_bytes.h"

#include <algorithm>

#include "engine/kernels/key_sketch.h"
#include "engine/selection/sketch.h"

namespace tokenbutler {
namespace {

// The factors' rows of keys and values of one token, which each layer of a group reads anew: ranks
// 512 and 768 at a hidden size of 4096, bf16 (arXiv 2503.18893).
double XkvBytesPerToken(int hidden_size) { return 2.0 * (512 + 768) * hidden_size / 4096; }

// What a scan of all reads of one KV block, layer and KV head.
double ScanBytesPerBlock(const AttentionParams& params, const KvLayout& kv,
                         const StateLayout& state) {
  switch (params.policy) {
    case AttentionPolicy::kSketch:
      return static_cast<double>(SketchLayoutFor(params, kv).record_bytes());
    case AttentionPolicy::kExact:  // the keys themselves
      return kv.block_size * static_cast<double>(kv.token_row_bytes()) / 2;
    case AttentionPolicy::kTokenButler:
    case AttentionPolicy::kPca:
    case AttentionPolicy::kQuest:
      return static_cast<double>(state.record_bytes);
    default:
      return 0;
  }
}

// Share of the tokens that a step scans on average: all every prediction_interval steps, those of
// the best blocks at the others.
double ScannedShare(const AttentionParams& params) {
  const double full = 1.0 / params.prediction_interval;
  const double partial = params.scan_fraction < 1 ? params.scan_fraction : 0;
  return full + (1 - full) * partial;
}

// The keys of candidates that are not attended to: read to be ranked by.
double RescoredBytes(const AttentionParams& params, const KvLayout& kv) {
  return static_cast<double>(std::max(0, params.candidates - params.token_budget)) *
         static_cast<double>(kv.token_row_bytes()) / 2;
}

}  // namespace

StepBytes BytesOfStep(const StepShape& shape) {
  const KvLayout& kv = shape.kv;
  StepBytes bytes;
  const double attended = shape.attended_tokens * static_cast<double>(kv.token_bytes());
  const double lanes = static_cast<double>(kv.num_layers) * kv.num_kv_heads;
  switch (shape.params.policy) {
    case AttentionPolicy::kDense:
      bytes.streamed = attended;
      break;
    case AttentionPolicy::kXkv:
      bytes.streamed = kv.num_layers * XkvBytesPerToken(shape.hidden_size) * shape.context_len;
      break;
    default:
      bytes.streamed = ScanBytesPerBlock(shape.params, kv, shape.state) * lanes *
                       shape.context_len / kv.block_size * ScannedShare(shape.params);
      bytes.gathered = attended + RescoredBytes(shape.params, kv) * lanes;
  }
  return bytes;
}

}  // namespace tokenbutler
