#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/buffer.h"
#include "base/status.h"
#include "engine/kernels/rope_append.h"
#include "engine/models/model_config.h"
#include "engine/models/rope.h"
#include "engine/step_plan.h"
#include "offload/kv_store.h"

namespace tokenbutler {

class SequenceAttention;

// The activations of a pass through the layers, one row per token. "compute" is the dtype of the
// weights, bf16 or float32; everything that is summed into is float32.
struct Activations {
  float* residual = nullptr;   // [num_rows, hidden_size]
  void* normed = nullptr;      // [num_rows, hidden_size] compute
  float* qkv = nullptr;        // [num_rows, (num_heads + 2 * num_kv_heads) * head_dim]: q, k, v
  void* attended = nullptr;    // [num_rows, num_heads * head_dim] compute
  float* projected = nullptr;  // [num_rows, hidden_size]: what the attention or the MLP adds
  float* gate_up = nullptr;    // [num_rows, 2 * intermediate_size]: gate, up
  void* activated = nullptr;   // [num_rows, intermediate_size] compute
  // A float32 row per row for values on their way to compute dtype; as wide as the widest of them.
  float* unrounded = nullptr;  // [num_rows, unrounded_size]
};

// The tokens that pass through the layers together: either one token of each of many sequences (a
// decode step) or many tokens of one sequence (a prefill chunk). Owns the activations, which grow
// to the largest pass seen and are then reused: a steady step allocates nothing. Engine thread
// only.
class TokenRows {
 public:
  // The rows of one sequence.
  struct Sequence {
    int first_row = 0;
    int num_rows = 0;
    int start_position = 0;          // of the first row
    std::vector<std::byte*> blocks;  // bases of all its blocks up to its last row
    std::vector<std::byte*> state_blocks;
    SequenceAttention* attention = nullptr;  // null: dense
    // Policies that watch this prefill chunk and do not attend.
    struct Observer {
      SequenceAttention* attention = nullptr;
      std::vector<std::byte*> state_blocks;
    };
    std::vector<Observer> observers;
    int context_len() const { return start_position + num_rows; }
  };

  // `config` and `kv_store` must outlive this. `compute_dtype`: kBF16 or kF32.
  TokenRows(const ModelConfig& config, DType compute_dtype, const KvStore& kv_store);

  enum class Kind { kDecode, kPrefill };

  // Forgets all rows and makes room for `num_rows`. RESOURCE_EXHAUSTED naming the bytes.
  absl::Status Reset(int num_rows, Kind kind = Kind::kPrefill);
  // Adds one sequence's tokens. REQUIRES: room for them here and in the item's block table.
  void Add(const StepItem& item, const Rope& rope);

  bool is_decode() const { return kind_ == Kind::kDecode; }
  int num_rows() const { return num_rows_; }
  DType compute_dtype() const { return compute_dtype_; }
  const ModelConfig& config() const { return config_; }
  const KvStore& kv_store() const { return kv_store_; }
  absl::Span<const Sequence> sequences() const { return {sequences_.data(), num_sequences_}; }
  absl::Span<const int32_t> token_ids() const { return {token_ids_.data(), size_t(num_rows_)}; }
  // Where each row's token stands and goes. [num_rows]
  const RopeAppendParams::Row* places() const { return places_.data(); }

  const Activations& activations() const { return activations_; }
  int qkv_size() const { return (config_.num_heads + 2 * config_.num_kv_heads) * config_.head_dim; }
  int attended_size() const { return config_.num_heads * config_.head_dim; }

  // Where rows from `row` on of a compute-dtype activation of width `size` are first written in
  // float32: the activation itself when it is float32, `unrounded` otherwise.
  float* Unrounded(void* activation, int row, int size) const;
  // Rounds what Unrounded() held for rows [begin, end). Nothing to do in float32.
  void Round(void* activation, int begin, int end, int size) const;

 private:
  absl::Status Reserve(int num_rows);

  const ModelConfig& config_;
  const KvStore& kv_store_;
  const DType compute_dtype_;
  const int unrounded_size_;
  Kind kind_ = Kind::kPrefill;
  int num_rows_ = 0;
  int capacity_ = 0;
  size_t num_sequences_ = 0;
  std::vector<Sequence> sequences_;  // the first num_sequences_ are in use; kept for their vectors
  std::vector<int32_t> token_ids_;
  std::vector<RopeAppendParams::Row> places_;
  std::vector<float> rotations_;  // [capacity, 2, head_dim / 2]: cosines, sines
  Activations activations_;
  Buffer storage_;
};

}  // namespace tokenbutler
