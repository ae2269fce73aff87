#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "base/status.h"
#include "engine/predictor/predictor.h"
#include "engine/selection/policy_spec.h"
#include "tools/train/distillation_loss.h"
#include "tools/train/parameters.h"
#include "tools/train/teacher.h"
#include "tools/train/training_options.h"

namespace tokenbutler {

// A predictor in training. One step goes Forward, DistillationLoss::Run over layers(), Backward.
//
// Every layer without a sliding window is scored: from layer 1 on by predicted queries, and by the
// layer's own where the predictor projects them. Layer 0, which nothing predicts, only so.
class Student {
 public:
  virtual ~Student() = default;

  Parameters& parameters() { return parameters_; }
  const Parameters& parameters() const { return parameters_; }

  // Computes the queries of the pass's rows, as the engine will of its own.
  virtual void Forward(const TeacherPass& pass) = 0;
  // What to score after Forward. Points into the pass, the parameters and this.
  absl::Span<const ScoredLayer> layers() const { return layers_; }
  int key_dim() const { return key_dim_; }
  float score_scale() const;  // of the products of queries and keys
  // Adds what the gradients of the queries mean for the parameters behind them. The same pass.
  virtual void Backward(const TeacherPass& pass) = 0;

  // The predictor as it is now, without the digest of its model.
  virtual Predictor Export() const;
  // Of activations, once Forward has run.
  virtual size_t bytes() const = 0;

 protected:
  // Adds the projections, which begin with the directions of NewStudent.
  Student(const StudentOptions& options, const SelectionResources& model, ComputePool& pool,
          absl::Span<const float> directions);

  // Points layers_ at the parameters, once all arrays have been added.
  void LayOut();
  void ScoreOwnQueries(const TeacherPass& pass);
  int producer_of(int layer) const { return (layer - 1) / options_.layers_per_predictor; }

  const StudentOptions options_;
  const SelectionResources& model_;
  ComputePool& pool_;
  const int key_dim_;  // d
  Parameters parameters_;
  Parameters::Array key_projection_, early_projection_, late_projection_;  // size 0: none
  std::vector<ScoredLayer> layers_;
};

// A student at its start. `directions` [L, Hkv, d_h, d'] are the principal directions of the keys
// (key_directions.h): key and query projections begin with them, so that scores begin as those of
// the policy pca; empty with TrainedKeys::kFull. `model` and `pool` must outlive the student.
// INVALID_ARGUMENT naming the field when options and model do not go together.
absl::StatusOr<std::unique_ptr<Student>> NewStudent(const StudentOptions& options,
                                                    const SelectionResources& model,
                                                    ComputePool& pool,
                                                    absl::Span<const float> directions,
                                                    uint64_t seed);

// Fills an array with values from U(-bound, bound). Different streams of a seed are independent.
void Randomise(float bound, uint64_t seed, uint32_t stream, float* values, size_t size);

// Calls fn(i) for i in [0, count) on the pool, and rethrows the first exception once all are done.
void ForEachOnPool(ComputePool& pool, int count, const std::function<void(int)>& fn);

}  // namespace tokenbutler
