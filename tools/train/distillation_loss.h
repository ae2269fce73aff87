#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "tools/train/aligned_floats.h"
#include "tools/train/teacher.h"

namespace tokenbutler {

// Queries of one layer that the loss scores against the layer's keys. R rows, H heads, d_h the
// model's head dimension, d that of the keys as they are scored. Gradients are null where they are
// not wanted.
struct ScoredQueries {
  // [R, H, width], rows `stride` floats apart; null: none.
  const float* queries = nullptr;
  size_t stride = 0;
  // [H, d_h, d], queries being [R, H, d_h]; null: the queries are [R, H, d].
  const float* projections = nullptr;
  float* projection_gradients = nullptr;  // [H, d_h, d], added to
  float* query_gradients = nullptr;       // as `queries`, replaced
};

// What the loss needs of one layer.
struct ScoredLayer {
  int layer = 0;
  const float* key_projections = nullptr;     // [Hkv, d_h, d]; null: the cached keys, d = d_h
  float* key_projection_gradients = nullptr;  // the same, added to
  ScoredQueries early;                        // predicted
  ScoredQueries late;                         // the layer's own
};

struct LossOptions {
  int key_dim = 0;  // d
  float scale = 1;  // of the products
  // Tokens before `sink_tokens` and the last `local_window` up to a query's own are no matter of
  // choice: they are left out, and a head weighs what it pays to the others. 0, 0: all tokens.
  int sink_tokens = 0;
  int local_window = 0;
  // Of the gradients: those of `gradient_scale` times the sum of all rows', heads', layers' losses,
  // early and late.
  float gradient_scale = 1;
};

// Divergence of a layer's student from the teacher in nats: mean over rows and heads.
struct LayerLoss {
  double early = 0, late = 0;
};

// The published distillation loss (arXiv 2503.07518): for every row r and head h
//   -sum_t T_t log S_t,  T = softmax(q k_t / sqrt(d_h)),  S = softmax(scale q' k'_t),  t causal,
// its gradients written out. Float32; work and memory grow with R times the number of tokens.
// Tasks are a layer's KV heads, for whoever of the pool is free: the result does not depend on how
// many threads there are. Keeps its memory from call to call; one thread.
class DistillationLoss {
 public:
  DistillationLoss(const Teacher& teacher, ComputePool& pool) : teacher_(teacher), pool_(pool) {}

  // `pass` is the teacher's last. One result per layer, in their order. Throws what LibTorch
  // throws.
  std::vector<LayerLoss> Run(const TeacherPass& pass, absl::Span<const ScoredLayer> layers,
                             const LossOptions& options);

  // Of its memory, once it has run.
  size_t bytes() const;

 private:
  // What a thread works in.
  struct Workspace {
    AlignedFloats keys;                            // [T, d_h]
    AlignedFloats projected;                       // [T, d]
    AlignedFloats projected_gradients;             // [T, d]
    AlignedFloats stacked;                         // [rows of a block * group, d_h or d]
    AlignedFloats teacher, student;                // [rows of a block * group, T]
    AlignedFloats queries[2], query_gradients[2];  // [R * group, d]: early, late
    std::vector<double> masses, neg_entropies;     // of a block's rows
    std::vector<std::pair<int, int>> ranges;

    size_t bytes() const;
  };
  class Task;

  const Teacher& teacher_;
  ComputePool& pool_;
  std::vector<Workspace> workspaces_;
  std::vector<LayerLoss> sums_;  // of each task
};

}  // namespace tokenbutler
