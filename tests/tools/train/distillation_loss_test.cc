// The loss against a slow restatement, and its gradients, through every part of both kinds of
// student, against differences of the loss.
#include "tools/train/distillation_loss.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/predictor/tiny_predictor.h"
#include "tests/tools/train/training_fixture.h"
#include "tools/train/sampled_rows.h"
#include "tools/train/student.h"

namespace tokenbutler {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kHeadDim = 16, kLayers = 5;

struct Case {
  std::string name;
  PredictorKind kind = PredictorKind::kLookahead;
  TrainedKeys keys = TrainedKeys::kProjected;
  bool late = true;
  int rank = 0;
  LayerPoint point = LayerPoint::kInput;
  PredictorInput input = PredictorInput::kBeforeNorm;
  int sink_tokens = 0, local_window = 0;
};

class DistillationLossTest : public testing::TestWithParam<Case> {
 protected:
  DistillationLossTest() {
    const Case& c = GetParam();
    StudentOptions options{.kind = c.kind,
                           .keys = c.keys,
                           .projected_dim = 8,
                           .hidden_dim = 12,
                           .layers_per_predictor = 2,
                           .point = c.point,
                           .input = c.input,
                           .late = c.late,
                           .correction_rank = c.rank};
    std::vector<float> directions;
    if (c.keys == TrainedKeys::kProjected) {
      directions = RandomValues(kLayers * kKvHeads * kHeadDim * 8, 1, 0.3f);
    }
    student_ = *NewStudent(options, teacher_->model(), teacher_->pool(), directions, 3);
    // Away from the start, where corrections are zero.
    AlignedFloats& values = student_->parameters().all_values();
    const std::vector<float> noise = RandomValues(values.size(), 2, 0.1f);
    for (size_t i = 0; i < values.size(); ++i) values[i] += noise[i];

    const std::vector<int32_t> tokens = *RepeatingSequences().Training(0);
    const Status status = teacher_->Run(tokens, {SampleRows(96, 20, 1, 0), c.point, 2}, &pass_);
    EXPECT_TRUE(status.ok()) << status;
    options_ = {.key_dim = student_->key_dim(),
                .scale = student_->score_scale(),
                .sink_tokens = c.sink_tokens,
                .local_window = c.local_window,
                .gradient_scale = 0.25f};
  }
  using Status = absl::Status;

  std::vector<LayerLoss> Run() {
    student_->Forward(pass_);
    return loss_.Run(pass_, student_->layers(), options_);
  }
  // What the gradients are of.
  double Sum() {
    double sum = 0;
    for (const LayerLoss& loss : Run()) sum += loss.early + loss.late;
    return sum * 0.25 * static_cast<double>(pass_.rows.size()) * kHeads;
  }

  TinyTeacher teacher_;
  std::unique_ptr<Student> student_;
  TeacherPass pass_;
  LossOptions options_;
  DistillationLoss loss_{*teacher_, teacher_->pool()};
};

// One query's divergence: all in double, one product after the other.
double SlowDivergence(const float* real_query, const std::vector<double>& query,
                      const std::vector<std::vector<double>>& keys,
                      const std::vector<std::vector<double>>& scored_keys, int limit,
                      const LossOptions& options) {
  const auto dot = [](const auto& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < b.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  std::vector<double> teacher(limit), student(limit);
  double total = 0, student_total = 0, mass = 0;
  const int begin = options.sink_tokens, end = limit - options.local_window;
  for (int t = 0; t < limit; ++t) {
    teacher[t] = std::exp(dot(real_query, keys[t]) / std::sqrt(double{kHeadDim}));
    total += teacher[t];
    student[t] = dot(query, scored_keys[t]) * options.scale;
    if (t < begin || t >= end) continue;
    student_total += std::exp(student[t]);
  }
  for (int t = begin; t < end; ++t) mass += teacher[t] / total;
  double divergence = 0;
  for (int t = begin; t < end; ++t) {
    const double p = teacher[t] / total;
    divergence += p * (std::log(p / mass) - (student[t] - std::log(student_total)));
  }
  return divergence;
}

TEST_P(DistillationLossTest, IsWhatASlowRestatementSays) {
  const std::vector<LayerLoss> losses = Run();
  ASSERT_EQ(losses.size(), student_->layers().size());
  const int dim = options_.key_dim;
  for (size_t l = 0; l < losses.size(); ++l) {
    const ScoredLayer& layer = student_->layers()[l];
    double early = 0, late = 0;
    for (int h = 0; h < kHeads; ++h) {
      const int kv = h / (kHeads / kKvHeads);
      std::vector<float> loaded(96 * kHeadDim);
      teacher_->LoadKeys(layer.layer, kv, 96, loaded.data());
      std::vector<std::vector<double>> keys(96), scored(96);
      for (int t = 0; t < 96; ++t) {
        keys[t].assign(loaded.begin() + t * kHeadDim, loaded.begin() + (t + 1) * kHeadDim);
        if (layer.key_projections == nullptr) {
          scored[t] = keys[t];
          continue;
        }
        scored[t].resize(dim);
        for (int i = 0; i < kHeadDim; ++i) {
          for (int c = 0; c < dim; ++c) {
            scored[t][c] += keys[t][i] * layer.key_projections[(kv * kHeadDim + i) * dim + c];
          }
        }
      }
      for (size_t r = 0; r < pass_.rows.size(); ++r) {
        const float* real = pass_.queries[layer.layer].data() + (r * kHeads + h) * kHeadDim;
        for (const bool is_late : {false, true}) {
          const ScoredQueries& from = is_late ? layer.late : layer.early;
          if (from.queries == nullptr) continue;
          const int width = from.projections == nullptr ? dim : kHeadDim;
          const float* given = from.queries + r * from.stride + h * width;
          std::vector<double> query(given, given + width);
          if (from.projections != nullptr) {
            std::vector<double> projected(dim);
            for (int i = 0; i < kHeadDim; ++i) {
              for (int c = 0; c < dim; ++c) {
                projected[c] += query[i] * from.projections[(h * kHeadDim + i) * dim + c];
              }
            }
            query = projected;
          }
          (is_late ? late : early) +=
              SlowDivergence(real, query, keys, scored, pass_.rows[r] + 1, options_);
        }
      }
    }
    const double count = static_cast<double>(pass_.rows.size()) * kHeads;
    EXPECT_NEAR(losses[l].early, early / count, 1e-5 * (1 + early / count)) << layer.layer;
    EXPECT_NEAR(losses[l].late, late / count, 1e-5 * (1 + late / count)) << layer.layer;
  }
}

// Along random directions that change a sixteenth of the parameters each, and along the gradient
// itself.
TEST_P(DistillationLossTest, GradientsAreThoseOfTheLoss) {
  AlignedFloats& values = student_->parameters().all_values();
  AlignedFloats& gradients = student_->parameters().all_gradients();
  Run();
  student_->Backward(pass_);
  const AlignedFloats gradient = gradients, start = values;
  std::mt19937 random(7);
  const size_t part = values.size() / 16 + 1;
  int num_parts_with_gradients = 0;
  for (size_t begin = 0; begin < values.size(); begin += part) {
    const size_t end = std::min(begin + part, values.size());
    for (const bool along_gradient : {false, true}) {
      double norm = 0, slope = 0;
      std::vector<float> direction(end - begin);
      for (size_t i = begin; i < end; ++i) {
        const float sign = random() % 2 == 0 ? 1.0f : -1.0f;
        direction[i - begin] = along_gradient ? gradient[i] : sign;
        norm += direction[i - begin] * direction[i - begin];
      }
      if (norm == 0) continue;  // of layer 0, which nothing predicts
      constexpr double kStep = 0.02;
      const auto at = [&](double step) {
        for (size_t i = begin; i < end; ++i) {
          values[i] = static_cast<float>(start[i] + step / std::sqrt(norm) * direction[i - begin]);
        }
        return Sum();
      };
      const double difference =
          (8 * (at(kStep) - at(-kStep)) - (at(2 * kStep) - at(-2 * kStep))) / (12 * kStep);
      std::copy(start.begin(), start.end(), values.begin());
      for (size_t i = begin; i < end; ++i) {
        slope += gradient[i] * direction[i - begin] / std::sqrt(norm);
      }
      EXPECT_NEAR(difference, slope, 2e-3 + 0.01 * std::abs(slope)) << begin << along_gradient;
      if (along_gradient && slope > 0.05) ++num_parts_with_gradients;
    }
  }
  EXPECT_GE(num_parts_with_gradients, 8);
}

TEST_P(DistillationLossTest, ThreadsMakeNoDifference) {
  const auto run = [&](ComputePool& pool) {
    DistillationLoss loss(*teacher_, pool);
    AlignedFloats& gradients = student_->parameters().all_gradients();
    std::fill(gradients.begin(), gradients.end(), 0.0f);
    student_->Forward(pass_);
    std::vector<double> results;
    for (const LayerLoss& layer : loss.Run(pass_, student_->layers(), options_)) {
      results.insert(results.end(), {layer.early, layer.late});
    }
    student_->Backward(pass_);
    results.insert(results.end(), gradients.begin(), gradients.end());
    return results;
  };
  ComputePool one(1), three(3);
  EXPECT_EQ(run(one), run(three));
}

INSTANTIATE_TEST_SUITE_P(
    Students, DistillationLossTest,
    testing::Values(
        Case{.name = "Lookahead", .late = false}, Case{.name = "LookaheadAndLate"},
        Case{.name = "CorrectedLookahead", .rank = 3, .point = LayerPoint::kAfterAttention},
        Case{.name = "CorrectionAlone", .keys = TrainedKeys::kFull, .late = false, .rank = 3},
        Case{.name = "CorrectionAloneOfTheChosen",
             .keys = TrainedKeys::kFull,
             .late = false,
             .rank = 3,
             .sink_tokens = 4,
             .local_window = 16},
        Case{.name = "Producers", .kind = PredictorKind::kTokenButler, .late = false},
        Case{.name = "ProducersAndLate",
             .kind = PredictorKind::kTokenButler,
             .input = PredictorInput::kAfterNorm,
             .sink_tokens = 4,
             .local_window = 16}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tokenbutler
