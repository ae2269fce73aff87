#include <algorithm>
#include <cstring>

#include "engine/kernels/cpu/sketch_codes.h"
#include "engine/kernels/sketch_scan.h"

namespace tokenbutler {
namespace {

// Keys that are made out of codes and rounded again together.
constexpr int kMaxBlockFloats = 128 * 256;

// key~ of one token.
void Widen(const SketchLayout& layout, const std::byte* record, int token, float* key) {
  for (int c = 0; c < layout.head_dim; ++c) {
    key[c] = SketchZero(layout, record, c) +
             SketchScale(layout, record, c) * SketchCode(layout, record, token, c);
  }
}

void GatherBlock(const SketchGatherParams& p, const SketchGatherParams::Head& head, int block) {
  const int block_size = p.gathered.block_size, head_dim = p.layout.head_dim;
  alignas(64) float keys[kMaxBlockFloats];
  for (int i = 0; i < block_size; ++i) {
    const int token = head.tokens[std::min(block * block_size + i, head.num_tokens - 1)];
    Widen(p.layout, head.keys.record(p.layout, token / p.layout.block_size),
          token % p.layout.block_size, keys + i * head_dim);
  }
  SketchKeys({.layout = p.gathered,
              .keys = keys,
              .dtype = DType::kF32,
              .key_stride_bytes = head_dim * sizeof(float),
              .record = head.records + block * p.gathered.record_bytes()});
}

}  // namespace

void SketchGather(const SketchGatherParams& p, ComputePool& pool) {
  int max_blocks = 0;
  for (const SketchGatherParams::Head& head : p.heads) {
    max_blocks =
        std::max(max_blocks, (head.num_tokens + p.gathered.block_size - 1) / p.gathered.block_size);
  }
  pool.ParallelFor(static_cast<int>(p.heads.size()) * max_blocks, [&](int task) {
    const SketchGatherParams::Head& head = p.heads[task / max_blocks];
    const int block = task % max_blocks;
    if (block * p.gathered.block_size < head.num_tokens) GatherBlock(p, head, block);
  });
}

}  // namespace tokenbutler
