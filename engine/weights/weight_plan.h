#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/compute_pool.h"
#include "base/status.h"
#include "engine/models/architecture.h"
#include "engine/models/model_config.h"
#include "engine/weights/model_weights.h"
#include "engine/weights/tensor_source.h"

namespace tokenbutler {

// Which stored tensor goes where in memory, worked out and checked before memory is taken. Used
// once: Create, then Load. `source` must outlive it.
class WeightPlan {
 public:
  struct Options {
    DType matrix_dtype = DType::kF32;  // kF32 or kBF16
    bool interleaved_qk = false;       // turn the rows of Q and K back to Hugging Face's order
  };

  // Finds every tensor that `config` asks for. NOT_FOUND naming a missing tensor; INVALID_ARGUMENT
  // naming a tensor with its shape found and wanted, or a tensor of the files that nothing uses:
  // what a model holds and we ignore would make it another model.
  static absl::StatusOr<WeightPlan> Create(const ModelConfig& config, const TensorNames& names,
                                           const TensorSource& source, Options options);

  int64_t total_bytes() const { return static_cast<int64_t>(matrix_bytes_ + vector_bytes_); }

  // Takes the memory and fills it on `pool`. `progress` may be empty; see LoadOptions.
  // RESOURCE_EXHAUSTED naming the bytes when the system refuses them.
  absl::StatusOr<ModelWeights> Load(ComputePool& pool,
                                    const std::function<void(int64_t, int64_t)>& progress) const;

 private:
  // One tensor's way. Matrices and vectors live in a region each.
  struct Step {
    StoredTensor stored;
    TensorView view;    // data is unset until memory is there
    size_t offset = 0;  // in the region
    bool is_matrix = false;
    int interleaved_heads = 0;  // above 0: heads whose rows are to be put back in order
  };
  // A share of one step's rows.
  struct Share {
    uint32_t step = 0;
    int64_t row_begin = 0, row_end = 0;
  };
  // What the finished ModelWeights gets from which step; -1: absent.
  struct LayerSteps {
    int input_norm = -1, q_proj = -1, k_proj = -1, v_proj = -1, o_proj = -1;
    int q_bias = -1, k_bias = -1, v_bias = -1, o_bias = -1;
    int post_attention_norm = -1, gate_proj = -1, up_proj = -1, down_proj = -1;
    int gate_bias = -1, up_bias = -1, down_bias = -1;
  };

  // Where a tensor starts: on a cache line, or right after the one before, as in [q; k; v].
  enum class Placement { kAligned, kAdjacent };

  WeightPlan() = default;
  absl::Status AddModel(const ModelConfig& config, const TensorNames& names,
                        const TensorSource& source);
  absl::Status AddAttention(const ModelConfig& config, const TensorNames& names,
                            const TensorSource& source, int layer, LayerSteps* steps);
  absl::Status AddMlp(const ModelConfig& config, const TensorNames& names,
                      const TensorSource& source, int layer, LayerSteps* steps);
  // Plan `name` with `shape`, a matrix or a float32 vector, and give its step.
  absl::Status Add(const TensorSource& source, const std::string& name, std::vector<int64_t> shape,
                   Placement placement, int* step);
  absl::Status RefuseUnused(const ModelConfig& config, const TensorNames& names,
                            const TensorSource& source) const;
  std::vector<Share> SplitIntoShares() const;
  static void Fill(const Step& step, const Share& share, std::byte* region);

  Options options_;
  std::vector<Step> steps_;
  std::vector<LayerSteps> layers_;
  int token_embedding_ = -1, final_norm_ = -1, lm_head_ = -1;
  size_t matrix_bytes_ = 0, vector_bytes_ = 0;
};

}  // namespace tokenbutler
