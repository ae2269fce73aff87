#include "engine/selection/policies.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/status_details.h"
#include "engine/selection/exact.h"
#include "engine/selection/h2o.h"
#include "engine/selection/projected_policies.h"
#include "engine/selection/quest.h"
#include "engine/selection/random_tokens.h"
#include "engine/selection/snapkv.h"
#include "engine/selection/streaming_llm.h"
#include "engine/selection/xkv.h"

namespace tokenbutler {
namespace {

using Selector = absl::StatusOr<std::unique_ptr<TokenSelector>>;

template <std::unique_ptr<KeyScanner> (*kNewScanner)()>
Selector Scanning(const AttentionParams& params, const SelectionResources& resources) {
  return std::make_unique<ScanningSelector>(params, resources.config->num_layers, kNewScanner());
}

PolicyMemory RandomMemory(const AttentionParams& params, const SelectionResources& resources,
                          int num_tokens) {
  return {.own = ScanningSelector::MostBytes(params, resources.config->num_layers,
                                             resources.layout.num_kv_heads, num_tokens)};
}

// A score of each token, one KV head after the other, and an index of each found.
PolicyMemory ExactMemory(const AttentionParams& params, const SelectionResources& resources,
                         int num_tokens) {
  const int64_t found = ScanningSelector::MostFound(params, num_tokens);
  return {.own = RandomMemory(params, resources, num_tokens).own +
                 num_tokens * int64_t{sizeof(float)} + found * int64_t{sizeof(int32_t)}};
}

constexpr PolicySpec kExactPolicy = {.policy = AttentionPolicy::kExact,
                                     .scores_whole_blocks = true,
                                     .memory = ExactMemory,
                                     .create = Scanning<NewExactScanner>};
constexpr PolicySpec kRandomPolicy = {.policy = AttentionPolicy::kRandom,
                                      .scores_whole_blocks = true,
                                      .memory = RandomMemory,
                                      .create = Scanning<NewRandomScanner>};

// Adding a policy: one file that makes its selector, one line here.
constexpr const PolicySpec* kPolicies[] = {
    &kTokenButlerPolicy, &kSketchPolicy, &kPcaPolicy,          &kQuestPolicy, &kExactPolicy,
    &kSnapKvPolicy,      &kH2oPolicy,    &kStreamingLlmPolicy, &kXkvPolicy,   &kRandomPolicy,
};

class IdleSelector : public TokenSelector {
 public:
  std::unique_ptr<TokenSelector> Clone() const override { return NewIdleSelector(); }
  void Select(const LayerContext& context, const float*, TokenSelection* selection) override {
    selection->Reset(context.layout->num_kv_heads, 0);
  }
};

const PolicySpec* Find(AttentionPolicy policy) {
  const auto* at = std::find_if(std::begin(kPolicies), std::end(kPolicies),
                                [&](const PolicySpec* spec) { return spec->policy == policy; });
  return at == std::end(kPolicies) ? nullptr : *at;
}

}  // namespace

StateLayout StateLayoutFor(const AttentionParams& params, const SelectionResources& resources) {
  const PolicySpec* spec = Find(params.policy);
  const bool has_state = spec != nullptr && spec->record_bytes != nullptr;
  return StateLayout::For(resources.layout, has_state ? spec->record_bytes(params, resources) : 0);
}

PolicyMemory PolicyMemoryFor(const AttentionParams& params, const SelectionResources& resources,
                             int num_tokens) {
  const PolicySpec* spec = Find(params.policy);
  return spec == nullptr || spec->memory == nullptr ? PolicyMemory{}
                                                    : spec->memory(params, resources, num_tokens);
}

bool LearnsFromPrefill(AttentionPolicy policy) {
  const PolicySpec* spec = Find(policy);
  return spec != nullptr && spec->learns_from_prefill;
}

std::unique_ptr<TokenSelector> NewIdleSelector() { return std::make_unique<IdleSelector>(); }

absl::Status CheckPolicy(const AttentionParams& params, const SelectionResources& resources) {
  if (!params.sparse()) return absl::OkStatus();
  RETURN_IF_ERROR(params.Validate());
  const PolicySpec* spec = Find(params.policy);
  if (spec == nullptr) {
    return WithField(UnimplementedError("attention.policy is \"{}\", which this server lacks",
                                        PolicyName(params.policy)),
                     "attention.policy");
  }
  const int local = std::max(params.local_window, resources.layout.block_size);
  const int least = params.sink_tokens + local + params.prediction_interval;
  if (spec->scores_whole_blocks && params.token_budget < least) {
    return WithField(
        InvalidArgumentError("attention.token_budget is {}, must be at least {}: sink_tokens + "
                             "local_window (at least a block of {}) + prediction_interval",
                             params.token_budget, least, resources.layout.block_size),
        "attention.token_budget");
  }
  if (const StateLayout state = StateLayoutFor(params, resources);
      state.record_bytes > 0 && state.kv_blocks() == 0) {
    return WithField(
        InvalidArgumentError("attention.policy \"{}\" keeps {} bytes per layer and KV head of a "
                             "block, a block of {} tokens has {} (--block-size)",
                             PolicyName(params.policy), state.record_bytes,
                             resources.layout.block_size, resources.layout.head_bytes()),
        "attention.policy");
  }
  return spec->check == nullptr ? absl::OkStatus() : spec->check(params, resources);
}

AttentionParams FittedParams(const AttentionParams& params, int num_tokens, int block_size) {
  AttentionParams fitted = params.FittedTo(num_tokens, block_size);
  const PolicySpec* spec = Find(params.policy);
  if (spec != nullptr && spec->least_budget != nullptr) {
    const int least = std::max(fitted.token_budget, spec->least_budget(fitted));
    fitted.token_budget = std::min(params.token_budget, least);
  }
  return fitted;
}

absl::StatusOr<std::unique_ptr<TokenSelector>> CreateSelector(const AttentionParams& params,
                                                              const SelectionResources& resources) {
  RETURN_IF_ERROR(CheckPolicy(params, resources));
  return Find(params.policy)->create(params, resources);
}

}  // namespace tokenbutler
