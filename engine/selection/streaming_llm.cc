#include "engine/selection/streaming_llm.h"

#include <algorithm>

#include "engine/selection/attended_ranges.h"

namespace tokenbutler {
namespace {

class StreamingLlmSelector : public TokenSelector {
 public:
  StreamingLlmSelector(int token_budget, int sink_tokens)
      : token_budget_(token_budget), sink_tokens_(sink_tokens) {}

  std::unique_ptr<TokenSelector> Clone() const override {
    return std::make_unique<StreamingLlmSelector>(*this);
  }

  void Select(const LayerContext& context, const float*, TokenSelection* selection) override {
    const int num_kv_heads = context.layout->num_kv_heads;
    const int num_evicted = SinkShift(context);
    selection->Reset(num_kv_heads, token_budget_);
    for (int h = 0; h < num_kv_heads; ++h) {
      AddAlways(0, sink_tokens_, h, selection);
      AddAlways(sink_tokens_ + num_evicted, context.context_len, h, selection);
    }
  }

  // The publication keeps keys unrotated and rotates each by its place in the cache. Cached here
  // after rotation by their true positions, the last tokens are as far from the query as they
  // should be, and the first ones are once the query is moved back by what was evicted between.
  int SinkShift(const LayerContext& context) const override {
    return std::max(context.context_len - token_budget_, 0);
  }

 private:
  int token_budget_, sink_tokens_;
};

absl::StatusOr<std::unique_ptr<TokenSelector>> Create(const AttentionParams& params,
                                                      const SelectionResources&) {
  return std::make_unique<StreamingLlmSelector>(params.token_budget, params.sink_tokens);
}

}  // namespace

const PolicySpec kStreamingLlmPolicy = {.policy = AttentionPolicy::kStreamingLlm, .create = Create};

}  // namespace tokenbutler
