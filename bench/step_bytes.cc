#include "bench/step_bytes.h"

#include "engine/kernels/key_sketch.h"
#include "engine/selection/sketch.h"

namespace tokenbutler {
namespace {

// A staged scan of low-bit keys reads scales and zeros of all blocks, codes of some.
double SketchBytesPerBlock(const AttentionParams& params, const KvLayout& kv) {
  const SketchLayout sketch = SketchLayoutFor(params, kv);
  const double codes = static_cast<double>(sketch.sub_blocks() * sketch.sub_block_bytes());
  return static_cast<double>(sketch.codes_offset()) + params.scan_fraction * codes;
}

// The factors' rows of keys and values of one token, which each layer of a group reads anew: ranks
// 512 and 768 at a hidden size of 4096, bf16 (arXiv 2503.18893).
double XkvBytesPerToken(int hidden_size) { return 2.0 * (512 + 768) * hidden_size / 4096; }

// What a scan reads of one KV block, layer and KV head.
double ScanBytesPerBlock(const AttentionParams& params, const KvLayout& kv,
                         const StateLayout& state) {
  switch (params.policy) {
    case AttentionPolicy::kSketch:
      return SketchBytesPerBlock(params, kv);
    case AttentionPolicy::kExact:  // the keys themselves
      return static_cast<double>(kv.block_size * kv.row_bytes());
    case AttentionPolicy::kTokenButler:
    case AttentionPolicy::kPca:
    case AttentionPolicy::kQuest:
      return static_cast<double>(state.record_bytes);
    default:
      return 0;
  }
}

// Steps between two scans read the candidates' keys instead, gathered and rounded to four bits.
double RescoredBytes(const AttentionParams& params, const KvLayout& kv) {
  if (params.policy != AttentionPolicy::kSketch) return 0;
  return params.candidates * kv.head_dim / 2.0 * (params.prediction_interval - 1) /
         params.prediction_interval;
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
                       shape.context_len / kv.block_size / shape.params.prediction_interval;
      bytes.streamed += RescoredBytes(shape.params, kv) * lanes;
      bytes.gathered = attended;
  }
  return bytes;
}

}  // namespace tokenbutler
