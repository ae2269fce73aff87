// Students compute queries as the engine does of the predictors that they become.
#include "tools/train/student.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/selection/predicted_queries.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/predictor/tiny_predictor.h"
#include "tests/tools/train/training_fixture.h"
#include "tools/train/key_directions.h"
#include "tools/train/sampled_rows.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

constexpr int kHeads = 4, kKvHeads = 2, kHeadDim = 16, kHidden = 32, kLayers = 5;

class StudentTest : public testing::TestWithParam<DType> {
 protected:
  StudentTest() : teacher_({.dtype = GetParam()}) {}

  std::unique_ptr<Student> New(const StudentOptions& options) {
    directions_ = options.keys == TrainedKeys::kFull
                      ? std::vector<float>()
                      : *FindKeyDirections(*teacher_, sequences_, 2, options.projected_dim);
    auto student =
        *NewStudent(options, teacher_->model(), teacher_->pool(), directions_, /*seed=*/3);
    const std::vector<int32_t> tokens = *sequences_.Training(0);
    const absl::Status status = teacher_->Run(
        tokens, {SampleRows(96, 20, 1, 0), options.point, options.layers_per_predictor}, &pass_);
    EXPECT_TRUE(status.ok()) << status;
    return student;
  }

  // What the engine predicts for a row. [count]
  std::vector<float> EngineQuery(QueryPredictor& predictor, int layer, int layers_per_predictor,
                                 size_t row, int count) {
    const int producer = (layer - 1) / layers_per_predictor;
    LayerContext context;
    context.layer = producer * layers_per_predictor;
    context.context_len = pass_.rows[row] + 1;
    context.pool = &teacher_->pool();
    predictor.Begin(context, pass_.hidden[producer].data() + row * kHidden, nullptr);
    const float* query = predictor.Query(context, layer);
    return {query, query + count};
  }

  TinyTeacher teacher_;
  RepeatingSequences sequences_;
  std::vector<float> directions_;
  TeacherPass pass_;
};

INSTANTIATE_TEST_SUITE_P(Types, StudentTest, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& type) { return std::string(DTypeName(type.param)); });

TEST_P(StudentTest, LookaheadQueriesAreTheEngines) {
  const auto student = New({.kind = PredictorKind::kLookahead,
                            .projected_dim = 8,
                            .layers_per_predictor = 2,
                            .point = LayerPoint::kAfterAttention});
  student->Forward(pass_);
  const auto engine = NewLookaheadQuery(teacher_->model(), 2, LayerPoint::kAfterAttention);
  ASSERT_EQ(student->layers().size(), 5u);
  for (const ScoredLayer& layer : student->layers()) {
    if (layer.layer == 0) continue;
    for (size_t r = 0; r < pass_.rows.size(); ++r) {
      const float* query = layer.early.queries + r * layer.early.stride;
      EXPECT_EQ(std::vector<float>(query, query + kHeads * kHeadDim),
                EngineQuery(*engine, layer.layer, 2, r, kHeads * kHeadDim));
    }
  }
}

// At the start the correction is nothing; then it is the engine's.
TEST_P(StudentTest, CorrectedQueriesAreTheEngines) {
  const auto student = New({.kind = PredictorKind::kLookahead,
                            .keys = TrainedKeys::kFull,
                            .layers_per_predictor = 2,
                            .point = LayerPoint::kAfterAttention,
                            .late = false,
                            .correction_rank = 3});
  const auto uncorrected = NewLookaheadQuery(teacher_->model(), 2, LayerPoint::kAfterAttention);
  student->Forward(pass_);
  ASSERT_EQ(student->layers().size(), 4u);  // nothing of layer 0 is trained
  for (const ScoredLayer& layer : student->layers()) {
    const float* query = layer.early.queries;
    EXPECT_EQ(std::vector<float>(query, query + kHeads * kHeadDim),
              EngineQuery(*uncorrected, layer.layer, 2, 0, kHeads * kHeadDim));
  }

  const std::vector<float> noise = RandomValues(student->parameters().all_values().size(), 4, 0.2f);
  for (size_t i = 0; i < noise.size(); ++i) {
    float& value = student->parameters().all_values()[i];
    value = ToFloat(ToBF16(value + noise[i]));  // as the file will have it
  }
  student->Forward(pass_);
  const Predictor predictor = student->Export();
  ASSERT_TRUE(predictor.Validate().ok()) << predictor.Validate();
  const auto corrected = NewLookaheadQuery(teacher_->model(), predictor);
  for (const ScoredLayer& layer : student->layers()) {
    for (size_t r = 0; r < pass_.rows.size(); ++r) {
      const float* query = layer.early.queries + r * layer.early.stride;
      const std::vector<float> wanted =
          EngineQuery(*corrected, layer.layer, 2, r, kHeads * kHeadDim);
      EXPECT_LT(MaxAbsDifference({query, kHeads * kHeadDim}, wanted), 1e-4);
      EXPECT_GT(
          MaxAbsDifference(wanted, EngineQuery(*uncorrected, layer.layer, 2, r, kHeads * kHeadDim)),
          0.01);
    }
  }
}

TEST_P(StudentTest, ProducedQueriesAreTheEngines) {
  const auto student = New({.kind = PredictorKind::kTokenButler,
                            .projected_dim = 8,
                            .hidden_dim = 12,
                            .layers_per_predictor = 2});
  for (float& value : student->parameters().all_values()) {
    value = ToFloat(ToBF16(value * 1.5f));  // as the file will have it
  }
  student->Forward(pass_);
  const Predictor predictor = student->Export();
  ASSERT_TRUE(predictor.Validate().ok()) << predictor.Validate();
  const auto engine = NewProducerQuery(teacher_->model(), predictor);
  for (const ScoredLayer& layer : student->layers()) {
    if (layer.layer == 0) continue;
    for (size_t r = 0; r < pass_.rows.size(); ++r) {
      const float* query = layer.early.queries + r * layer.early.stride;
      EXPECT_LT(MaxAbsDifference({query, kHeads * 8},
                                 EngineQuery(*engine, layer.layer, 2, r, kHeads * 8)),
                1e-4);
    }
  }
}

// At the start, scores are those of keys and queries on the keys' principal directions.
TEST_P(StudentTest, ProjectionsBeginWithThePrincipalDirections) {
  const auto student = New({.kind = PredictorKind::kLookahead, .projected_dim = 8});
  ASSERT_EQ(directions_.size(), static_cast<size_t>(kLayers * kKvHeads * kHeadDim * 8));
  const Predictor start = student->Export();
  EXPECT_EQ(start.key_projection, directions_);
  // Columns are orthonormal, and q^T D D^T k / sqrt(d_h) = q'^T k' / sqrt(d').
  const size_t matrix = kHeadDim * 8;
  for (int l = 0; l < kLayers; ++l) {
    for (int h = 0; h < kHeads; ++h) {
      const float* keys = start.key_projection.data() + (l * kKvHeads + h / 2) * matrix;
      for (const std::vector<float>* queries : {&start.early_projection, &start.late_projection}) {
        const float* q = queries->data() + (l * kHeads + h) * matrix;
        for (size_t i = 0; i < matrix; ++i) {
          EXPECT_NEAR(q[i] / std::sqrt(8.0f), keys[i] / std::sqrt(16.0f), 1e-6);
        }
      }
    }
    for (int a = 0; a < 8; ++a) {
      for (int b = 0; b < 8; ++b) {
        double dot = 0;
        for (int i = 0; i < kHeadDim; ++i) {
          dot += start.key_projection[l * kKvHeads * matrix + i * 8 + a] *
                 start.key_projection[l * kKvHeads * matrix + i * 8 + b];
        }
        EXPECT_NEAR(dot, a == b ? 1 : 0, 1e-5);
      }
    }
  }
}

// The directions of two sequences capture at least as much of both as those of the first alone.
TEST_P(StudentTest, DirectionsAreThoseOfAllSequences) {
  const auto captured = [&](const std::vector<float>& directions) {
    double sum = 0;
    for (int s = 0; s < 2; ++s) {
      TeacherPass pass;
      EXPECT_TRUE(teacher_->Run(*sequences_.Training(s), {.rows = {95}}, &pass).ok());
      for (int h = 0; h < kLayers * kKvHeads; ++h) {
        std::vector<float> keys(96 * kHeadDim);
        teacher_->LoadKeys(h / kKvHeads, h % kKvHeads, 96, keys.data());
        for (int t = 0; t < 96; ++t) {
          for (int c = 0; c < 4; ++c) {
            double dot = 0;
            for (int i = 0; i < kHeadDim; ++i) {
              dot += keys[t * kHeadDim + i] * directions[(h * kHeadDim + i) * 4 + c];
            }
            sum += dot * dot;
          }
        }
      }
    }
    return sum;
  };
  const double both = captured(*FindKeyDirections(*teacher_, sequences_, 2, 4));
  const double first = captured(*FindKeyDirections(*teacher_, sequences_, 1, 4));
  EXPECT_GT(both, first);
}

TEST(NewStudentTest, RefusesWhatDoesNotGoWithTheModel) {
  TinyTeacher teacher;
  const auto message = [&](const StudentOptions& options) {
    const std::vector<float> directions(kLayers * kKvHeads * kHeadDim * options.projected_dim);
    return std::string(
        NewStudent(options, teacher->model(), teacher->pool(), directions, 1).status().message());
  };
  EXPECT_THAT(message({.projected_dim = 32}), HasSubstr("projected_dim is 32, must be at most 16"));
  EXPECT_THAT(message({.projected_dim = 8, .layers_per_predictor = 6}),
              HasSubstr("layers_per_predictor is 6, must be in [1, 5]"));
}

}  // namespace
}  // namespace tokenbutler
