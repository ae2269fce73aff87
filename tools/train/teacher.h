#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "base/status.h"
#include "engine/selection/policy_spec.h"
#include "engine/selection/principal_directions.h"
#include "engine/selection/token_selector.h"
#include "engine/step_runner.h"
#include "offload/kv_store.h"
#include "tools/train/aligned_floats.h"

namespace tokenbutler {

// What is to be seen of a model's pass over a sequence.
struct TeacherView {
  // Positions, ascending, whose queries and hidden states are kept.
  std::vector<int> rows;
  // Hidden states at this point of layers 0, G, 2 G ... below the last one.
  LayerPoint point = LayerPoint::kInput;
  int layers_per_predictor = 1;  // G
};

// What one pass has shown. R rows; L, H, d_h, E as in struct Predictor. Memory is reused.
struct TeacherPass {
  int num_tokens = 0;
  std::vector<int> rows;               // [R]
  std::vector<AlignedFloats> queries;  // [L]: [R, H, d_h], after RoPE
  std::vector<AlignedFloats> hidden;   // [producers]: [R, E], before the norm that comes next

  // Makes `part` a pass with every `step`-th of these rows, from `first` on.
  void Take(size_t first, size_t step, TeacherPass* part) const;
  size_t bytes() const;
};

// The model that a predictor learns from: the serving engine's own prefill, dense, watched from
// within. One thread, the one that calls ComputePool::ParallelFor.
class Teacher {
 public:
  // Takes all blocks of the store. All must outlive the teacher.
  Teacher(StepRunner& runner, const KvStore& kv_store, ComputePool& pool, int chunk_tokens = 1024);

  // The longest sequence.
  int max_tokens() const { return num_blocks_ * kv_store_.layout().block_size; }
  // Of the KV cache.
  size_t kv_bytes() const { return static_cast<size_t>(kv_store_.capacity_bytes()); }
  const SelectionResources& model() const { return runner_.resources(); }
  ComputePool& pool() { return pool_; }

  // Runs the tokens from position 0 on. INVALID_ARGUMENT for tokens outside of the vocabulary, more
  // than max_tokens(), or rows that are not ascending positions of theirs; errors of the runner.
  absl::Status Run(absl::Span<const int32_t> tokens, const TeacherView& view, TeacherPass* pass);

  // The keys of the last Run's first `num_tokens` tokens as they are cached: for reading in place,
  // any thread, until the next Run.
  FirstKeys Keys(int layer, int kv_head, int num_tokens) const;
  // The same as float32. `out` [num_tokens, head_dim].
  void LoadKeys(int layer, int kv_head, int num_tokens, float* out) const;

 private:
  StepRunner& runner_;
  const KvStore& kv_store_;
  ComputePool& pool_;
  const int num_blocks_;
  const int chunk_tokens_;
  BlockTable table_;
  std::vector<std::byte*> blocks_;  // of the table
};

}  // namespace tokenbutler
