#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "base/dtype.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// Low-bit keys: what a selection policy reads of every cached token instead of its key.
//
// A record is the sketch of one layer, one KV head and one block of `block_size` consecutive
// tokens. Each channel c of the block has a scale and a zero, and each token a code of `bits` bits:
//
//   key[t][c] ~ zero[c] + scale[c] * code[t][c]
//
// as KIVI (Liu et al. 2024) stores keys.
//
// Parts of a record, each on cache lines of its own:
//   scales, zeros  bf16 [padded_dim] each
//   codes          [block_size / 16][padded_dim * bits / 32] lines of 64 bytes: lane j of 4 bytes
//                  is token j of the sub-block. Field n (lowest bits first) of byte b of line i is
//                  channel (32 / bits) i + 4 n + b.
// So a lane is a token (no sum across lanes), and a sub-block's codes are whole cache lines.
struct SketchLayout {
  int head_dim = 0;      // 16 ... 256, a multiple of 16
  int block_size = 128;  // tokens; 16 ... kMaxBlockSize, a multiple of 16
  int bits = 2;          // 1, 2 or 4

  static constexpr int kSubBlockTokens = 16;
  static constexpr int kMaxBlockSize = 1024;

  // Whether the values above are within their bounds; all else here REQUIRES it.
  bool IsValid() const;

  int levels() const { return (1 << bits) - 1; }  // the largest code
  int sub_blocks() const { return block_size / kSubBlockTokens; }
  // Channels, with those added that fill the last line of codes; scale, zero and codes are 0 there.
  int padded_dim() const { return bits == 1 ? (head_dim + 31) / 32 * 32 : head_dim; }

  // Byte offsets inside a record; all multiples of 64.
  size_t scales_offset() const { return 0; }
  size_t zeros_offset() const { return RoundUpToLine(2 * static_cast<size_t>(padded_dim())); }
  size_t codes_offset() const { return 2 * zeros_offset(); }
  size_t record_bytes() const { return codes_offset() + sub_blocks() * sub_block_bytes(); }
  size_t sub_block_bytes() const { return static_cast<size_t>(padded_dim()) * bits * 2; }

 private:
  static size_t RoundUpToLine(size_t n) { return (n + 63) / 64 * 64; }
};

// Where the records of one layer and KV head of one sequence are: the record of block b is at
// runs[b / blocks_per_run] + offset + (b % blocks_per_run) * record_bytes. One table serves all
// layers and heads of a sequence.
struct SketchedKeys {
  const std::byte* const* runs = nullptr;  // each 64-byte aligned
  size_t offset = 0;                       // of this layer and KV head in each run; mod 64 = 0
  int blocks_per_run = 1;

  const std::byte* record(const SketchLayout& layout, int block) const {
    return runs[block / blocks_per_run] + offset +
           static_cast<size_t>(block % blocks_per_run) * layout.record_bytes();
  }
};

// Writes the record of one block. Levels of each channel: for 4 bits the block's minimum and
// maximum and evenly between; for 1 bit mean -/+ mean absolute deviation. For 2 bits, from minimum
// and maximum on, twice: codes nearest to the levels, then the scale and zero with the least
// squared error for these codes (the linear regression of keys on codes; Lloyd's method for levels
// at equal distances). Scale and zero are bf16, and codes are nearest to what these give. Channels
// that hold infinity or NaN get arbitrary codes. Any thread; allocates nothing.
struct SketchKeysParams {
  SketchLayout layout;
  const void* keys = nullptr;  // [block_size, head_dim] dtype, as cached (after RoPE)
  DType dtype = DType::kBF16;
  size_t key_stride_bytes = 0;  // from row to row
  // kI8: row t's scale is key_scales[t * KvLayout::kScalesPerToken].
  const float* key_scales = nullptr;
  std::byte* record = nullptr;  // [layout.record_bytes()], 64-byte aligned
};
void SketchKeys(const SketchKeysParams& params);
void SketchKeysPlain(const SketchKeysParams& params);

// Scores of the tokens of one KV head, by the query heads that share it:
//   score[t] = max_h (softmax_scale * query[h] . key~[t] - lse[h])
// With the lse of the last step's attention, the heads' scores are comparable: estimates of the
// log of the attention weight. The fast version rounds query * scale to int8 per block and head;
// for one bit, where the processor has vpermb, such that sums of four fit a byte (7 to 8 bits).
struct SketchScoresParams {
  struct Head {
    SketchedKeys keys;
    const float* queries = nullptr;  // [group_size, head_dim], after RoPE
    const float* lse = nullptr;      // [group_size], or null: zeros
    int begin = 0, end = 0;          // tokens; positions in `keys`
    float* scores = nullptr;         // [end - begin]
  };
  SketchLayout layout;
  int group_size = 1;  // 1 ... 64
  float softmax_scale = 1;
  absl::Span<const Head> heads;  // of one or more sequences
};
void SketchScores(const SketchScoresParams& params, ComputePool& pool);
void SketchScoresPlain(const SketchScoresParams& params);

}  // namespace tokenbutler
