#include "engine/selection/policies.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/status_details.h"
#include "engine/selection/exact.h"
#include "engine/selection/random_tokens.h"
#include "engine/selection/sketch.h"

namespace tokenbutler {
namespace {

using Selector = absl::StatusOr<std::unique_ptr<TokenSelector>>;

// A policy: the bytes it keeps per KV block, layer and KV head; what it asks of parameters and
// model beyond the general bounds; how it is made.
struct PolicySpec {
  AttentionPolicy policy;
  size_t (*record_bytes)(const AttentionParams&, const KvLayout&);
  absl::Status (*check)(const AttentionParams&, const SelectionResources&);
  Selector (*create)(const AttentionParams&, const SelectionResources&);
};

size_t NoState(const AttentionParams&, const KvLayout&) { return 0; }
absl::Status Any(const AttentionParams&, const SelectionResources&) { return absl::OkStatus(); }

template <std::unique_ptr<KeyScanner> (*kNewScanner)()>
Selector Scanning(const AttentionParams& params, const SelectionResources& resources) {
  return std::make_unique<ScanningSelector>(params, resources.config->num_layers, kNewScanner());
}

size_t SketchRecordBytes(const AttentionParams& params, const KvLayout& layout) {
  const SketchLayout sketch = SketchLayoutFor(params, layout);
  return sketch.IsValid() ? sketch.record_bytes() : 0;
}

absl::Status CheckSketch(const AttentionParams& params, const SelectionResources& resources) {
  if (SketchLayoutFor(params, resources.layout).IsValid()) return absl::OkStatus();
  return WithField(
      InvalidArgumentError("attention.policy \"sketch\" needs a head_dim of 16, 32, ... 256 and a "
                           "block size that is a multiple of 16; they are {} and {}",
                           resources.layout.head_dim, resources.layout.block_size),
      "attention.policy");
}

Selector NewSketch(const AttentionParams& params, const SelectionResources& resources) {
  const int num_layers = resources.config->num_layers;
  return std::make_unique<ScanningSelector>(params, num_layers,
                                            NewSketchScanner(params, resources.layout, num_layers));
}

// Adding a policy: one file that makes its selector, one line here.
constexpr PolicySpec kPolicies[] = {
    {AttentionPolicy::kSketch, SketchRecordBytes, CheckSketch, NewSketch},
    {AttentionPolicy::kExact, NoState, Any, Scanning<NewExactScanner>},
    {AttentionPolicy::kRandom, NoState, Any, Scanning<NewRandomScanner>},
};

const PolicySpec* Find(AttentionPolicy policy) {
  const auto* at = std::find_if(std::begin(kPolicies), std::end(kPolicies),
                                [&](const PolicySpec& spec) { return spec.policy == policy; });
  return at == std::end(kPolicies) ? nullptr : at;
}

}  // namespace

StateLayout StateLayoutFor(const AttentionParams& params, const KvLayout& layout) {
  const PolicySpec* spec = Find(params.policy);
  return StateLayout::For(layout, spec == nullptr ? 0 : spec->record_bytes(params, layout));
}

absl::Status CheckPolicy(const AttentionParams& params, const SelectionResources& resources) {
  if (!params.sparse()) return absl::OkStatus();
  RETURN_IF_ERROR(params.Validate());
  const PolicySpec* spec = Find(params.policy);
  if (spec == nullptr) {
    return WithField(UnimplementedError("attention.policy is \"{}\", which this server lacks",
                                        PolicyName(params.policy)),
                     "attention.policy");
  }
  // Keys join what is scored a block at a time; until then they are attended in any case.
  const int local = std::max(params.local_window, resources.layout.block_size);
  const int least = params.sink_tokens + local + params.prediction_interval;
  if (params.token_budget < least) {
    return WithField(
        InvalidArgumentError("attention.token_budget is {}, must be at least {}: sink_tokens + "
                             "local_window (at least a block of {}) + prediction_interval",
                             params.token_budget, least, resources.layout.block_size),
        "attention.token_budget");
  }
  if (const StateLayout state = StateLayoutFor(params, resources.layout);
      state.record_bytes > 0 && state.kv_blocks() == 0) {
    return WithField(
        InvalidArgumentError("attention.policy \"{}\" keeps {} bytes per layer and KV head of a "
                             "block, a block of {} tokens has {} (--block-size)",
                             PolicyName(params.policy), state.record_bytes,
                             resources.layout.block_size, resources.layout.head_bytes()),
        "attention.policy");
  }
  return spec->check(params, resources);
}

absl::StatusOr<std::unique_ptr<TokenSelector>> CreateSelector(const AttentionParams& params,
                                                              const SelectionResources& resources) {
  RETURN_IF_ERROR(CheckPolicy(params, resources));
  return Find(params.policy)->create(params, resources);
}

}  // namespace tokenbutler
