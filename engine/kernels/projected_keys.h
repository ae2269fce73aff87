#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "base/dtype.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// How a projected key is stored.
enum class ProjectedFormat : uint8_t {
  kInt8,  // a code of 8 bits per channel; scale and zero per channel and block of tokens
  kBf16,
};

// Projected keys: each cached key k [head_dim] as k P [dim], with one matrix P per layer and KV
// head. A record holds those of one layer, one KV head and one block of `block_size` consecutive
// tokens:
//
//   kInt8: scales [dim] float32, zeros [dim] float32, up to a multiple of 64 bytes; codes
//          projected[t][c] ~ zeros[c] + scales[c] * code[t][c],  code in [0, 255]
//   kBf16: values only
//   codes or values: per 16 tokens lines of 64 bytes, lane j (4 bytes) of each being token j; line
//          i holds channels 4 i ... 4 i + 3 (kInt8), or 2 i and 2 i + 1 (kBf16), in rising order.
//
// Scale and zero per channel, because principal directions differ a hundredfold in size.
struct ProjectedLayout {
  int dim = 16;          // 4 ... 128, a multiple of 4
  int block_size = 128;  // tokens; a multiple of 16
  ProjectedFormat format = ProjectedFormat::kInt8;

  static constexpr int kSubBlockTokens = 16;

  // Whether the values above are within their bounds; all else here REQUIRES it.
  bool IsValid() const {
    return dim >= 4 && dim <= 128 && dim % 4 == 0 && block_size >= 16 && block_size % 16 == 0;
  }
  size_t zeros_offset() const { return sizeof(float) * static_cast<size_t>(dim); }
  size_t codes_offset() const {
    return format == ProjectedFormat::kBf16 ? 0 : (2 * zeros_offset() + 63) / 64 * 64;
  }
  int lines() const { return format == ProjectedFormat::kBf16 ? dim / 2 : dim / 4; }
  size_t sub_block_bytes() const { return static_cast<size_t>(lines()) * 64; }
  size_t record_bytes() const {
    return codes_offset() + static_cast<size_t>(block_size / kSubBlockTokens) * sub_block_bytes();
  }
};

// Where the records of one layer and KV head of one sequence are: the record of block b is at
// runs[b / blocks_per_run] + offset + (b % blocks_per_run) * stride.
struct ProjectedRecords {
  const std::byte* const* runs = nullptr;  // each 64-byte aligned
  size_t offset = 0;                       // a multiple of 64
  int blocks_per_run = 1;
  size_t stride = 0;  // bytes from record to record, at least record_bytes(); a multiple of 64

  const std::byte* record(int block) const {
    return runs[block / blocks_per_run] + offset +
           static_cast<size_t>(block % blocks_per_run) * stride;
  }
};

// Writes the record of one block. Any thread; allocates nothing.
struct ProjectKeysParams {
  ProjectedLayout layout;
  const void* keys = nullptr;  // [block_size, head_dim] dtype, as cached (after RoPE)
  DType dtype = DType::kBF16;
  size_t key_stride_bytes = 0;  // from row to row
  // kI8: row t's scale is key_scales[t * KvLayout::kScalesPerToken].
  const float* key_scales = nullptr;
  int head_dim = 0;
  const float* projection = nullptr;  // P [head_dim, dim]
  std::byte* record = nullptr;        // [layout.record_bytes()], 64-byte aligned
  float* workspace = nullptr;         // [block_size * dim]
};
void ProjectKeys(const ProjectKeysParams& params);
void ProjectKeysPlain(const ProjectKeysParams& params);

// How the logits of the query heads that share a KV head become one score:
enum class GroupPooling : uint8_t {
  kMax,      // max_h (logit[h] - offset[h])
  kMeanExp,  // log mean_h exp(logit[h] - offset[h])
};

// Scores of the tokens of one KV head, with logit[h][t] = scale * query[h] . projected[t].
struct ProjectedScoresParams {
  struct Head {
    ProjectedRecords keys;
    const float* queries = nullptr;  // [group_size, dim], projected
    const float* offsets = nullptr;  // [group_size] log-sum-exp of each head's logits; null: zeros
    int begin = 0, end = 0;          // tokens; positions in `keys`
    float* scores = nullptr;         // [end - begin]; not read by ProjectedLogSumExp
    float* lse = nullptr;            // [group_size], written by ProjectedLogSumExp alone
  };
  ProjectedLayout layout;
  int group_size = 1;  // 1 ... 64
  float scale = 1;
  GroupPooling pooling = GroupPooling::kMax;
  absl::Span<const Head> heads;  // of one or more sequences
  // ProjectedLogSumExp: [ProjectedWorkspaceFloats(...)]; the scores need none.
  float* workspace = nullptr;
};
size_t ProjectedWorkspaceFloats(const ProjectedScoresParams& params);

// The fast version rounds query * scale to int8 per block and head where the CPU multiplies bytes
// (AVX-512 VNNI). Results do not depend on the number of threads.
void ProjectedScores(const ProjectedScoresParams& params, ComputePool& pool);
void ProjectedScoresPlain(const ProjectedScoresParams& params);

// lse[h] = log sum_{t in [begin, end)} exp(logit[h][t]), the first of two passes when scores are
// those of softmax over the scored tokens. -infinity for an empty range.
void ProjectedLogSumExp(const ProjectedScoresParams& params, ComputePool& pool);
void ProjectedLogSumExpPlain(const ProjectedScoresParams& params);

// The stored value of one channel of one token.
float ProjectedValue(const ProjectedLayout& layout, const std::byte* record, int token,
                     int channel);

}  // namespace tokenbutler
