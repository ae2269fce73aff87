#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/selection/attended_ranges.h"
#include "engine/selection/attention_params.h"
#include "engine/selection/close_calls.h"
#include "engine/selection/important_tokens.h"
#include "engine/selection/token_selector.h"

namespace tokenbutler {

// Tokens of one layer with a score each, per KV head: what scans find and rescoring ranks anew.
using ScoredTokens = TokenSelection;

// Which tokens a scan looks at.
enum class ScanReach {
  kAll,
  // Those of the blocks that held most of the attention at the layer's last scan of all, and those
  // added since: see AttentionParams::scan_fraction.
  kBestBlocks,
};

// Scores all tokens of one layer from what a policy keeps of the keys. The part in which scanning
// policies differ; ScanningSelector does the rest. One object per sequence.
class KeyScanner {
 public:
  static constexpr int kScanScratch = 16;

  virtual ~KeyScanner() = default;
  virtual std::unique_ptr<KeyScanner> Clone() const = 0;

  // Takes the memory for scans of up to `max_tokens` tokens that find up to `max_found`; see
  // TokenSelector.
  virtual void Reserve(const KvLayout& layout, int group_size, int max_tokens, int max_found) {
    (void)layout, (void)group_size, (void)max_tokens, (void)max_found;
  }

  // Tokens before this one can be scored now, given that `num_written` rows of the layer are
  // written: brings the layer's state up to date first. Ascending from call to call.
  virtual int Prepare(const LayerContext& context, int num_written) = 0;

  // Finds, for each KV head, the `count` tokens of [begin, end) with the highest scores for the
  // query [num_heads, head_dim], and adds them in ascending order with their scores.
  // `found` has been reset and has room for kScanScratch more per KV head, which may be written.
  // kBestBlocks: only with params.scan_fraction below 1, and after a scan of all. Returns how many
  // tokens it scored, over the KV heads.
  virtual int64_t Scan(const LayerContext& context, const float* query, int begin, int end,
                       int count, ScanReach reach, ScoredTokens* found) = 0;

  // The same for a query that a QueryPredictor gave, which need not look like the layer's own.
  virtual int64_t ScanPredicted(const LayerContext& context, const float* query, int begin, int end,
                                int count, ScanReach reach, ScoredTokens* found) {
    return Scan(context, query, begin, end, count, reach, found);
  }

  // Scores the layer's candidates for another query: replaces their scores. By default from their
  // keys themselves, of which the best are about to be attended to anyway: no estimate decides
  // last, and reading twice the budget's keys costs less than gathering estimates of them.
  virtual void Rescore(const LayerContext& context, const float* query, ScoredTokens* candidates);
};

// Queries of layers ahead, from the hidden state that enters a producer layer.
class QueryPredictor {
 public:
  virtual ~QueryPredictor() = default;
  virtual std::unique_ptr<QueryPredictor> Clone() const = 0;
  // Layers [first, last) that producer layer `layer` serves; empty when it is none.
  virtual std::pair<int, int> Consumers(int layer) const = 0;
  // The point of a producer layer whose hidden state it wants.
  virtual LayerPoint point() const { return LayerPoint::kInput; }
  // The hidden state at that point of producer layer `producer.layer`, as OnHidden gets it: before
  // the Query calls of its consumers, and only when there is one.
  virtual void Begin(const LayerContext& producer, const float* residual, const void* normed) = 0;
  // The queries of layer `consumer` at the context's last position, as the policy's KeyScanner
  // wants them in ScanPredicted: [num_heads, head_dim] after RoPE, or [num_heads, projected dim].
  // Valid until the next call. Null: none for this layer.
  virtual const float* Query(const LayerContext& producer, int consumer) = 0;
};

// A policy that scans what it keeps of all keys every `prediction_interval` steps. Scans are
// staggered over the layers so that no step carries them all. Between scans the kept tokens are
// attended as they are, or, when `candidates` says to keep more, each step's own query ranks them
// anew by their keys ("predict early, decide late"); in the step of a scan by that query only those
// that its estimates do not decide about (CloseCalls). With `scan_fraction` below 1 each step
// between two scans of all scans the best blocks of the last one. The local window grows between
// two scans, so that no token is both outside of it and unscored.
class ScanningSelector : public TokenSelector {
 public:
  // Tokens that scans of sequences of up to `max_tokens` tokens find at most, per KV head.
  static int MostFound(const AttentionParams& params, int max_tokens);
  // The most that is kept for such a sequence, apart from the scanner.
  static int64_t MostBytes(const AttentionParams& params, int num_layers, int num_kv_heads,
                           int max_tokens);

  // `predictor`: null for a scan by the layer's own query. `first_layer_is_dense`: nothing can
  // choose for layer 0.
  ScanningSelector(const AttentionParams& params, int num_layers,
                   std::unique_ptr<KeyScanner> scanner,
                   std::unique_ptr<QueryPredictor> predictor = nullptr,
                   bool first_layer_is_dense = false);

  std::unique_ptr<TokenSelector> Clone() const override;
  void Reserve(const KvLayout& layout, int group_size, int max_tokens) override;
  bool IsDenseLayer(int layer) const override { return layer == 0 && first_layer_is_dense_; }
  void OnPrefill(const LayerContext& context, const PrefillQueries& queries) override;
  void OnHidden(const LayerContext& context, LayerPoint point, const float* residual,
                const void* normed) override;
  const TokenSelection* Early(int layer) const override;
  void Select(const LayerContext& context, const float* query, TokenSelection* selection) override;
  const TokenSelection* NewCandidates(int layer) const override;
  int64_t num_scored() const override { return num_scored_; }

 private:
  struct Layer {
    int64_t num_steps = 0;  // since the last prefill
    bool scanned = false;   // `kept` is usable
    bool has_new_candidates = false;
    bool scanned_ahead = false;  // by a producer, for the step that is running
    int local_begin = 0;         // as of the last scan
    ScoredTokens kept;           // of [sink, local_begin)
  };

  // Whether this step scans layer `index`, and how far.
  std::optional<ScanReach> DueScan(const Layer& layer, int index) const;
  void Scan(const LayerContext& context, int num_written, const float* query, bool is_predicted,
            ScanReach reach);
  void Choose(const LayerContext& context, const Layer& layer, TokenSelection* selection);
  // The same after a scan of this step by the layer's own query: keys decide close calls only.
  void ChooseByEstimates(const LayerContext& context, const float* query, const Layer& layer,
                         TokenSelection* selection);

  const AttentionParams params_;
  std::unique_ptr<KeyScanner> scanner_;
  std::unique_ptr<QueryPredictor> predictor_;
  const bool first_layer_is_dense_;
  std::vector<Layer> layers_;
  std::vector<ImportantTokens> important_;  // one per KV head
  CloseCalls close_calls_;
  int64_t num_scored_ = 0;
};

}  // namespace tokenbutler
