// What those who watch a prefill are shown: its hidden states are those that the layers' queries
// and MLPs are computed from, whatever the chunks.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/linear.h"
#include "engine/kernels/rms_norm.h"
#include "engine/kernels/swiglu.h"
#include "engine/selection/predicted_queries.h"
#include "gtest/gtest.h"
#include "tests/testing/loaded_runner.h"

namespace tokenbutler {
namespace {

constexpr int kNumTokens = 40;

// Rows by (layer, 0 input, 1 after the attention, 2 queries): one after the other, token by token.
using Rows = std::map<std::pair<int, int>, std::vector<float>>;

class Recorder : public TokenSelector {
 public:
  Recorder(const ModelConfig& config, Rows* rows) : config_(config), rows_(rows) {}
  std::unique_ptr<TokenSelector> Clone() const override {
    return std::make_unique<Recorder>(*this);
  }
  void OnPrefillHidden(const LayerContext& context, LayerPoint point,
                       const PrefillHidden& hidden) override {
    std::vector<float>& to = (*rows_)[{context.layer, point == LayerPoint::kInput ? 0 : 1}];
    // The rows are those before context_len: nothing is shown twice, nothing left out.
    const size_t size = static_cast<size_t>(config_.hidden_size);
    EXPECT_EQ(to.size(), (context.context_len - hidden.num_rows) * size);
    to.insert(to.end(), hidden.residual, hidden.residual + hidden.num_rows * size);
  }
  void OnPrefill(const LayerContext& context, const PrefillQueries& queries) override {
    std::vector<float>& to = (*rows_)[{context.layer, 2}];
    const int size = config_.num_heads * config_.head_dim;
    for (int i = 0; i < queries.num_rows; ++i) {
      const float* query = queries.queries + i * queries.stride;
      to.insert(to.end(), query, query + size);
    }
  }
  void Select(const LayerContext&, const float*, TokenSelection*) override { FAIL(); }

 private:
  const ModelConfig& config_;
  Rows* rows_;
};

class PrefillHiddenTest : public testing::Test {
 protected:
  PrefillHiddenTest()
      : model_(*LoadedRunner::Load(std::string(TOKENBUTLER_TEST_DATA) + "/tiny_models/qwen2-yarn",
                                   {})) {}

  Rows Prefill(int chunk) {
    StepRunner& runner = model_->runner();
    std::vector<int32_t> tokens;
    for (int i = 0; i < kNumTokens; ++i) tokens.push_back(i * 37 % 96);
    const BlockTable table = model_->NewSequence(kNumTokens);
    Rows rows;
    std::vector<PromptObserver> observers(1);
    observers[0].table = table;
    observers[0].state = runner.NewObserver(std::make_unique<Recorder>(runner.config(), &rows));
    for (int at = 0; at < kNumTokens; at += chunk) {
      StepPlan plan;
      plan.prefill_chunks.push_back({.block_table = &table,
                                     .token_ids = absl::MakeConstSpan(tokens).subspan(at, chunk),
                                     .start_position = at,
                                     .observers = observers});
      EXPECT_TRUE(runner.Run(plan).ok());
    }
    return rows;
  }

  std::unique_ptr<LoadedRunner> model_;
};

TEST_F(PrefillHiddenTest, TheInputOfALayerGivesItsQueries) {
  const Rows rows = Prefill(kNumTokens);
  const SelectionResources& model = model_->runner().resources();
  const int size = model.config->num_heads * model.config->head_dim;
  ComputePool pool(1);
  const auto query = NewLookaheadQuery(model, 1, LayerPoint::kInput);
  for (int layer = 0; layer < model.config->num_layers; ++layer) {
    for (int token = 0; token < kNumTokens; ++token) {
      LayerContext context;
      context.layer = layer;
      context.context_len = token + 1;
      context.pool = &pool;
      query->Begin(context, rows.at({layer, 0}).data() + token * model.config->hidden_size,
                   nullptr);
      EXPECT_LT(
          MaxAbsDifference({query->Query(context, layer), static_cast<size_t>(size)},
                           {rows.at({layer, 2}).data() + token * size, static_cast<size_t>(size)}),
          1e-4)
          << layer << " " << token;
    }
  }
}

TEST_F(PrefillHiddenTest, BetweenAfterAttentionAndTheNextInputLiesTheMlp) {
  const Rows rows = Prefill(kNumTokens);
  const SelectionResources& model = model_->runner().resources();
  const int size = model.config->hidden_size, inner = model.config->intermediate_size;
  for (int layer = 0; layer + 1 < model.config->num_layers; ++layer) {
    const LayerWeights& weights = model.weights->layers[layer];
    std::vector<float> normed(size), gate_up(2 * inner), activated(inner), added(size);
    for (int token = 0; token < kNumTokens; ++token) {
      const float* before = rows.at({layer, 1}).data() + token * size;
      RmsNormPlain({.x = before,
                    .weight = weights.post_attention_norm.as<float>(),
                    .out = normed.data(),
                    .eps = model.config->rms_norm_eps,
                    .num_rows = 1,
                    .hidden_size = size});
      const auto multiply = [](const std::vector<float>& x, const TensorView& matrix, float* y) {
        LinearPlain({.x = x.data(),
                     .weight = matrix.data,
                     .weight_dtype = DType::kF32,
                     .y = y,
                     .num_rows = 1,
                     .in_features = static_cast<int>(matrix.shape[1]),
                     .out_features = static_cast<int>(matrix.shape[0])});
      };
      multiply(normed, weights.gate_proj, gate_up.data());
      multiply(normed, weights.up_proj, gate_up.data() + inner);
      SwiGluPlain({.gate_up = gate_up.data(),
                   .out = activated.data(),
                   .num_rows = 1,
                   .intermediate_size = inner});
      multiply(activated, weights.down_proj, added.data());
      const float* after = rows.at({layer + 1, 0}).data() + token * size;
      for (int i = 0; i < size; ++i) EXPECT_NEAR(after[i] - before[i], added[i], 1e-4);
    }
  }
}

TEST_F(PrefillHiddenTest, ChunksMakeNoDifference) {
  const Rows whole = Prefill(kNumTokens), parts = Prefill(7);
  EXPECT_EQ(whole.size(), model_->runner().config().num_layers * 3u);
  for (const auto& [place, values] : whole) {
    EXPECT_LT(MaxAbsDifference(parts.at(place), values), 1e-4) << place.first << place.second;
  }
}

}  // namespace
}  // namespace tokenbutler
