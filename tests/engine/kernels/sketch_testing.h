#pragma once

#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "engine/kernels/key_sketch.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {

// Bytes on a cache line of their own.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t bytes) : memory_(bytes + 64, std::byte{0xa5}) {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data());
    data_ = memory_.data() + (64 - at % 64) % 64;
  }
  AlignedBytes(AlignedBytes&&) = default;
  std::byte* data() { return data_; }

 private:
  std::vector<std::byte> memory_;
  std::byte* data_;
};

// Random keys of a few KV heads, their sketches in runs that lie in reverse order, and queries.
// Channels have different means and spreads, as real keys do.
class SketchCase {
 public:
  SketchCase(SketchLayout layout, int num_tokens, int group_size, int blocks_per_run = 3,
             int num_heads = 2)
      : layout(layout), num_tokens(num_tokens), group_size(group_size), num_heads(num_heads) {
    const int num_blocks = (num_tokens + layout.block_size - 1) / layout.block_size;
    const int num_runs = (num_blocks + blocks_per_run - 1) / blocks_per_run;
    const size_t head_bytes = blocks_per_run * layout.record_bytes();
    for (int r = 0; r < num_runs; ++r) memory_.emplace_back(num_heads * head_bytes);
    for (AlignedBytes& run : memory_) runs_.push_back(run.data());
    const int padded = num_blocks * layout.block_size;
    for (int head = 0; head < num_heads; ++head) {
      keys.push_back(Keys(padded, head));
      sketched.push_back(
          {.runs = runs_.data(), .offset = head * head_bytes, .blocks_per_run = blocks_per_run});
      for (int b = 0; b < num_blocks; ++b) {
        SketchKeys({.layout = layout,
                    .keys = keys[head].data() + size_t(b) * layout.block_size * layout.head_dim,
                    .dtype = DType::kF32,
                    .key_stride_bytes = layout.head_dim * sizeof(float),
                    .record = const_cast<std::byte*>(sketched[head].record(layout, b))});
      }
      queries.push_back(RandomFloats(size_t(group_size) * layout.head_dim, 100 + head));
      lse.push_back(RandomFloats(group_size, 200 + head));
    }
    softmax_scale = 1 / std::sqrt(static_cast<float>(layout.head_dim));
  }

  SketchLayout layout;
  int num_tokens, group_size, num_heads;
  float softmax_scale;
  std::vector<std::vector<float>> keys;  // [head][token, channel]
  std::vector<SketchedKeys> sketched;    // [head]
  std::vector<std::vector<float>> queries, lse;

 private:
  std::vector<float> Keys(int num_rows, int head) const {
    const int dim = layout.head_dim;
    std::vector<float> rows = RandomFloats(size_t(num_rows) * dim, 1 + head);
    const std::vector<float> means = RandomFloats(dim, 50 + head, 3.0f);
    const std::vector<float> spreads = RandomFloats(dim, 70 + head);
    // Neighbours are alike.
    const std::vector<float> trends = RandomFloats(size_t(num_rows / 16 + 1) * dim, 90 + head);
    for (int t = 0; t < num_rows; ++t) {
      for (int c = 0; c < dim; ++c) {
        float& key = rows[size_t(t) * dim + c];
        key = means[c] + std::exp(0.5f * spreads[c]) * (key + trends[size_t(t / 16) * dim + c]);
      }
    }
    return rows;
  }

  std::vector<AlignedBytes> memory_;
  std::vector<const std::byte*> runs_;
};

}  // namespace tokenbutler
