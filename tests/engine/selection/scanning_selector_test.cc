#include "engine/selection/scanning_selector.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

constexpr int kBlock = 16;
constexpr int kNumLayers = 4;

// Scores one planted token highest; keys are scored a block at a time, as low-bit keys are.
class PlantedScanner : public KeyScanner {
 public:
  struct Log {
    std::vector<int> scans;  // per layer
    int partial_scans = 0;   // of them
    int rescores = 0;
  };
  PlantedScanner(int planted, Log* log) : planted_(planted), log_(log) {
    log->scans.resize(kNumLayers);
  }
  std::unique_ptr<KeyScanner> Clone() const override {
    return std::make_unique<PlantedScanner>(*this);
  }
  int Prepare(const LayerContext&, int num_written) override {
    return num_written / kBlock * kBlock;
  }
  int64_t Scan(const LayerContext& context, const float*, int begin, int end, int count,
               ScanReach reach, ScoredTokens* found) override {
    if (reach == ScanReach::kBestBlocks) {
      EXPECT_GT(log_->scans[context.layer], 0) << "no scan of all before";
      ++log_->partial_scans;
    }
    ++log_->scans[context.layer];
    EXPECT_LE(end, context.context_len / kBlock * kBlock);
    const bool has_planted = planted_ >= begin && planted_ < end;
    for (int h = 0; h < 2; ++h) {
      // The first ones, and the planted one.
      const int others = std::min(count - (has_planted ? 1 : 0), end - begin);
      int added = 0;
      for (int t = begin; t < end; ++t) {
        if (t == planted_) {
          found->Add(h, t, 100.0f);
        } else if (added < others) {
          found->Add(h, t, 0.0f);
          ++added;
        }
      }
    }
    return 2 * (end - begin);
  }
  void Rescore(const LayerContext&, const float*, ScoredTokens* candidates) override {
    ++log_->rescores;
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < candidates->counts[h]; ++i) {
        const size_t at = static_cast<size_t>(h) * candidates->capacity + i;
        candidates->scores[at] = candidates->tokens[at] == planted_ ? 100.0f : 0.0f;
      }
    }
  }

 private:
  const int planted_;
  Log* log_;
};

class ScanningSelectorTest : public ::testing::TestWithParam<std::pair<int, bool>> {
 protected:
  AttentionParams Params() const {
    AttentionParams params;
    params.policy = AttentionPolicy::kSketch;
    params.sink_tokens = 3;
    params.local_window = 5;
    params.prediction_interval = GetParam().first;
    params.token_budget = params.sink_tokens + kBlock + params.prediction_interval + 8;
    params.candidates = GetParam().second ? params.token_budget + 20 : 0;
    return params;
  }

  // One decode step of all layers; the selections of each.
  static std::vector<TokenSelection> Step(ScanningSelector& selector, int context_len) {
    std::vector<TokenSelection> selections(kNumLayers);
    for (int l = 0; l < kNumLayers; ++l) {
      LayerContext context = Context(context_len, l);
      selector.OnHidden(context, LayerPoint::kInput, nullptr, nullptr);
      selector.Select(context, nullptr, &selections[l]);
    }
    return selections;
  }
  static LayerContext Context(int context_len, int layer) {
    static const KvLayout layout = {
        .num_layers = kNumLayers, .num_kv_heads = 2, .head_dim = 32, .block_size = kBlock};
    LayerContext context;
    context.layout = &layout;
    context.layer = layer;
    context.context_len = context_len;
    return context;
  }
};

// Wherever a token stands that every query looks for, every step attends to it: before it is
// scored it is in the local window, and nothing lies between.
TEST_P(ScanningSelectorTest, ATokenIsVisibleFromItsFirstStepOn) {
  const AttentionParams params = Params();
  const int prompt = params.token_budget + 1;
  for (int planted = prompt; planted < prompt + 3 * kBlock; ++planted) {
    PlantedScanner::Log log;
    ScanningSelector selector(params, kNumLayers, std::make_unique<PlantedScanner>(planted, &log));
    for (int l = 0; l < kNumLayers; ++l) selector.OnPrefill(Context(prompt, l), {});
    for (int context_len = prompt + 1; context_len < prompt + 6 * kBlock; ++context_len) {
      const std::vector<TokenSelection> selections = Step(selector, context_len);
      if (planted >= context_len) continue;
      for (int l = 0; l < kNumLayers; ++l) {
        for (int h = 0; h < 2; ++h) {
          const absl::Span<const int32_t> tokens = selections[l].tokens_of(h);
          ASSERT_TRUE(std::binary_search(tokens.begin(), tokens.end(), planted))
              << "token " << planted << " at context " << context_len << " in layer " << l;
        }
      }
    }
  }
}

TEST_P(ScanningSelectorTest, SelectionsAreAscendingWithinTheBudgetAndHoldSinkAndWindow) {
  const AttentionParams params = Params();
  const int prompt = params.token_budget + 1;
  PlantedScanner::Log log;
  ScanningSelector selector(params, kNumLayers, std::make_unique<PlantedScanner>(30, &log));
  for (int context_len = prompt; context_len < prompt + 70; ++context_len) {
    for (const TokenSelection& selection : Step(selector, context_len)) {
      for (int h = 0; h < 2; ++h) {
        const absl::Span<const int32_t> tokens = selection.tokens_of(h);
        EXPECT_LE(static_cast<int>(tokens.size()), params.token_budget);
        EXPECT_TRUE(std::adjacent_find(tokens.begin(), tokens.end(),
                                       std::greater_equal<int32_t>()) == tokens.end());
        for (int t = 0; t < params.sink_tokens; ++t) EXPECT_EQ(tokens[t], t);
        for (int i = 1; i <= params.local_window; ++i) {
          EXPECT_EQ(tokens[tokens.size() - i], context_len - i);
        }
      }
    }
  }
}

TEST_P(ScanningSelectorTest, EveryLayerScansOncePerIntervalAndNoStepCarriesThemAll) {
  const AttentionParams params = Params();
  const int interval = params.prediction_interval;
  const int prompt = params.token_budget + 1;
  PlantedScanner::Log log;
  ScanningSelector selector(params, kNumLayers, std::make_unique<PlantedScanner>(30, &log));
  Step(selector, prompt);  // nothing is known: all scan
  EXPECT_THAT(log.scans, ::testing::Each(1));
  log.scans.assign(kNumLayers, 0);
  int most = 0;
  for (int step = 0; step < interval; ++step) {
    const int before = log.scans[0] + log.scans[1] + log.scans[2] + log.scans[3];
    Step(selector, prompt + 1 + step);
    most = std::max(most, log.scans[0] + log.scans[1] + log.scans[2] + log.scans[3] - before);
  }
  EXPECT_THAT(log.scans, ::testing::Each(1));
  EXPECT_EQ(most, (kNumLayers + interval - 1) / interval);
}

// Nothing is kept from step to step then: the window does not grow.
TEST_P(ScanningSelectorTest, PartialScansAreMadeAtEveryStepBetween) {
  AttentionParams params = Params();
  params.scan_fraction = 0.5f;
  const int interval = params.prediction_interval;
  const int prompt = 3 * params.token_budget;
  PlantedScanner::Log log;
  ScanningSelector selector(params, kNumLayers, std::make_unique<PlantedScanner>(30, &log));
  Step(selector, prompt);  // nothing is known: all scan everything
  EXPECT_EQ(log.partial_scans, 0);
  for (int step = 1; step <= 2 * interval; ++step) {
    for (const TokenSelection& selection : Step(selector, prompt + step)) {
      const absl::Span<const int32_t> tokens = selection.tokens_of(0);
      EXPECT_EQ(static_cast<int>(tokens.size()), params.token_budget);
      EXPECT_TRUE(std::binary_search(tokens.begin(), tokens.end(), 30));
    }
  }
  EXPECT_THAT(log.scans, ::testing::Each(1 + 2 * interval));
  EXPECT_EQ(log.partial_scans, kNumLayers * 2 * (interval - 1));
}

TEST_P(ScanningSelectorTest, ACloneGoesItsOwnWay) {
  const AttentionParams params = Params();
  const int prompt = params.token_budget + 1;
  PlantedScanner::Log log;
  ScanningSelector selector(params, kNumLayers, std::make_unique<PlantedScanner>(30, &log));
  for (int i = 0; i < 5; ++i) Step(selector, prompt + i);
  const std::unique_ptr<TokenSelector> clone = selector.Clone();
  auto& copy = static_cast<ScanningSelector&>(*clone);
  for (int i = 5; i < 40; ++i) {
    const std::vector<TokenSelection> mine = Step(selector, prompt + i);
    const std::vector<TokenSelection> its = Step(copy, prompt + i);
    for (int l = 0; l < kNumLayers; ++l) {
      for (int h = 0; h < 2; ++h) EXPECT_EQ(mine[l].tokens_of(h), its[l].tokens_of(h));
    }
  }
}

// Layers 0 and 2 produce for the two layers that follow; layer 3 gets no query.
class PairPredictor : public QueryPredictor {
 public:
  explicit PairPredictor(std::vector<int>* begun, LayerPoint point = LayerPoint::kInput)
      : begun_(begun), point_(point) {}
  std::unique_ptr<QueryPredictor> Clone() const override {
    return std::make_unique<PairPredictor>(*this);
  }
  std::pair<int, int> Consumers(int layer) const override {
    if (layer % 2 != 0) return {layer, layer};
    return {layer + 1, std::min(layer + 3, kNumLayers)};
  }
  LayerPoint point() const override { return point_; }
  void Begin(const LayerContext& producer, const float*, const void*) override {
    begun_->push_back(producer.layer);
  }
  const float* Query(const LayerContext&, int consumer) override {
    return consumer == 3 ? nullptr : &query_;
  }

 private:
  std::vector<int>* begun_;
  LayerPoint point_;
  float query_ = 0;
};

// A scan ahead is made once, and known until the layer's own step.
TEST_P(ScanningSelectorTest, ProducersScanForTheLayersTheyServe) {
  const AttentionParams params = Params();
  PlantedScanner::Log log;
  std::vector<int> begun;
  ScanningSelector selector(params, kNumLayers, std::make_unique<PlantedScanner>(30, &log),
                            std::make_unique<PairPredictor>(&begun));
  const int context_len = params.token_budget + 1;
  std::vector<std::vector<int>> announced;
  TokenSelection selection;
  for (int l = 0; l < kNumLayers; ++l) {
    selector.OnHidden(Context(context_len, l), LayerPoint::kInput, nullptr, nullptr);
    announced.emplace_back();
    for (int ahead = 0; ahead < kNumLayers; ++ahead) {
      if (selector.Early(ahead) != nullptr) announced.back().push_back(ahead);
    }
    const int scans = log.scans[l];
    const int rescores = log.rescores;
    selector.Select(Context(context_len, l), nullptr, &selection);
    // Layers 0 and 3 have no prediction and scan for themselves.
    EXPECT_EQ(log.scans[l], 1) << l;
    EXPECT_EQ(scans, l == 0 || l == 3 ? 0 : 1) << l;
    // Whoever found the candidates, the keys decide among them.
    EXPECT_EQ(log.rescores - rescores, params.candidates > 0 ? 1 : 0) << l;
  }
  EXPECT_EQ(begun, (std::vector<int>{0, 2}));
  EXPECT_EQ(announced, (std::vector<std::vector<int>>{{1, 2}, {1, 2}, {2}, {}}));
}

TEST_P(ScanningSelectorTest, ProducersSeeTheHiddenStateAtTheirPointOnly) {
  PlantedScanner::Log log;
  std::vector<int> begun;
  ScanningSelector selector(Params(), kNumLayers, std::make_unique<PlantedScanner>(30, &log),
                            std::make_unique<PairPredictor>(&begun, LayerPoint::kAfterAttention));
  const LayerContext context = Context(Params().token_budget + 1, 0);
  selector.OnHidden(context, LayerPoint::kInput, nullptr, nullptr);
  EXPECT_EQ(selector.Early(1), nullptr);
  selector.OnHidden(context, LayerPoint::kAfterAttention, nullptr, nullptr);
  EXPECT_NE(selector.Early(1), nullptr);
  EXPECT_EQ(begun, (std::vector<int>{0}));
}

TEST_P(ScanningSelectorTest, TheFirstLayerIsDenseWhereNothingCanChooseForIt) {
  PlantedScanner::Log log;
  ScanningSelector selector(Params(), kNumLayers, std::make_unique<PlantedScanner>(30, &log),
                            nullptr, /*first_layer_is_dense=*/true);
  EXPECT_TRUE(selector.IsDenseLayer(0));
  EXPECT_FALSE(selector.IsDenseLayer(1));
  EXPECT_TRUE(selector.Clone()->IsDenseLayer(0));
}

INSTANTIATE_TEST_SUITE_P(Intervals, ScanningSelectorTest,
                         ::testing::Values(std::pair(1, false), std::pair(2, false),
                                           std::pair(4, true), std::pair(16, false),
                                           std::pair(16, true)));

}  // namespace
}  // namespace tokenbutler
