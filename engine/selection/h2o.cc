#include "engine/selection/h2o.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/status_details.h"
#include "engine/kernels/attention_mass.h"
#include "engine/kernels/top_k.h"

namespace tokenbutler {
namespace {

constexpr int kTopKScratch = 16;

class H2oSelector : public TokenSelector {
 public:
  H2oSelector(const AttentionParams& params, int num_layers)
      : token_budget_(params.token_budget),
        num_recent_(params.token_budget / 2),
        dense_first_layer_(params.dense_first_layer),
        layers_(static_cast<size_t>(num_layers)) {}

  std::unique_ptr<TokenSelector> Clone() const override {
    return std::make_unique<H2oSelector>(*this);
  }

  void Reserve(const KvLayout& layout, int, int max_tokens) override {
    const size_t most = static_cast<size_t>(std::min(token_budget_, max_tokens));
    for (Layer& layer : layers_) {
      layer.heads.resize(static_cast<size_t>(layout.num_kv_heads));
      for (Head& head : layer.heads) {
        head.tokens.reserve(most);
        head.mass.reserve(most);
      }
    }
    heavy_.reserve(most + kTopKScratch);
  }

  void OnPrefill(const LayerContext& context, const PrefillQueries& queries) override {
    if (context.layer == 0 && dense_first_layer_) return;
    AppendTokens(context);
    if (queries.num_rows == 0) return;
    const int num_kv_heads = context.layout->num_kv_heads;
    const int group_size = context.group_size;
    mass_of_all_.resize(static_cast<size_t>(context.context_len));
    lse_.resize(static_cast<size_t>(queries.num_rows) * group_size);
    for (int h = 0; h < num_kv_heads; ++h) {
      Head& head = layers_[context.layer].heads[h];
      // What was evicted collects mass too, and loses it again.
      for (size_t i = 0; i < head.tokens.size(); ++i) mass_of_all_[head.tokens[i]] = head.mass[i];
      AttentionMass({.queries = queries.queries +
                                static_cast<size_t>(h) * group_size * context.layout->head_dim,
                     .stride = queries.stride,
                     .num_rows = queries.num_rows,
                     .group_size = group_size,
                     .first_position = context.context_len - queries.num_rows,
                     .blocks = context.blocks.data(),
                     .layout = *context.layout,
                     .layer = context.layer,
                     .kv_head = h,
                     .softmax_scale = context.softmax_scale,
                     .mass = mass_of_all_.data(),
                     .lse = lse_.data()},
                    *context.pool);
      for (size_t i = 0; i < head.tokens.size(); ++i) head.mass[i] = mass_of_all_[head.tokens[i]];
    }
  }

  void Select(const LayerContext& context, const float*, TokenSelection* selection) override {
    // The prompt is cut when it turns out to be complete; after steps it is done already.
    for (Head& head : layers_[context.layer].heads) Evict(&head);
    AppendTokens(context);
    const int num_kv_heads = context.layout->num_kv_heads;
    selection->Reset(num_kv_heads, token_budget_);
    for (int h = 0; h < num_kv_heads; ++h) {
      const Head& head = layers_[context.layer].heads[h];
      for (size_t i = 0; i < head.tokens.size(); ++i) {
        selection->Add(h, head.tokens[i], head.mass[i]);
      }
    }
  }

  bool WantsWeights() const override { return true; }

  void OnAttended(const LayerContext& context, const TokenSelection& selection,
                  const float* const* weights) override {
    for (int h = 0; h < selection.num_kv_heads; ++h) {
      Head& head = layers_[context.layer].heads[h];
      for (int g = 0; g < context.group_size; ++g) {
        const float* head_weights = weights[h * context.group_size + g];
        for (size_t i = 0; i < head.mass.size(); ++i) head.mass[i] += head_weights[i];
      }
      Evict(&head);
    }
  }

 private:
  // The tokens that are left to one KV head, ascending, and the attention each has got.
  struct Head {
    std::vector<int32_t> tokens;
    std::vector<float> mass;
  };
  struct Layer {
    int num_tokens = 0;  // of the sequence, evicted ones included
    std::vector<Head> heads;
  };

  // New tokens join, without mass.
  void AppendTokens(const LayerContext& context) {
    Layer& layer = layers_[context.layer];
    layer.heads.resize(static_cast<size_t>(context.layout->num_kv_heads));
    for (; layer.num_tokens < context.context_len; ++layer.num_tokens) {
      for (Head& head : layer.heads) {
        head.tokens.push_back(layer.num_tokens);
        head.mass.push_back(0);
      }
    }
  }

  // Leaves room for one token: the last num_recent_ - 1 tokens stay and, of those before, the ones
  // with the most mass.
  void Evict(Head* head) {
    const int num_tokens = static_cast<int>(head->tokens.size());
    if (num_tokens < token_budget_) return;
    const int num_older = num_tokens - (num_recent_ - 1);
    const int num_heavy = token_budget_ - num_recent_;
    heavy_.resize(static_cast<size_t>(num_heavy) + kTopKScratch);
    int left = TopK(head->mass.data(), num_older, num_heavy, heavy_.data());
    for (int i = 0; i < left; ++i) {
      head->tokens[i] = head->tokens[heavy_[i]];
      head->mass[i] = head->mass[heavy_[i]];
    }
    for (int i = num_older; i < num_tokens; ++i, ++left) {
      head->tokens[left] = head->tokens[i];
      head->mass[left] = head->mass[i];
    }
    head->tokens.resize(left);
    head->mass.resize(left);
  }

  int token_budget_;
  int num_recent_;  // of the budget, for the last tokens, the newest included
  bool dense_first_layer_;
  std::vector<Layer> layers_;
  // Working memory.
  std::vector<float> mass_of_all_, lse_;
  std::vector<int32_t> heavy_;
};

// Growing lists may take twice what is in them; the prompt's are cut at the first step only.
PolicyMemory Memory(const AttentionParams&, const SelectionResources& resources, int num_tokens) {
  const int64_t lanes = int64_t{resources.layout.num_layers} * resources.layout.num_kv_heads;
  constexpr int64_t kTokenBytes = sizeof(int32_t) + sizeof(float);
  const int64_t scratch = num_tokens * int64_t{sizeof(float)};
  return {.own = 2 * lanes * num_tokens * kTokenBytes + scratch};
}

absl::Status Check(const AttentionParams& params, const SelectionResources&) {
  if (params.misses == MissRule::kOnDemand) return absl::OkStatus();
  return WithField(
      InvalidArgumentError("attention.misses is \"{}\", policy \"h2o\" needs the attention of "
                           "every token it chose: must be \"on_demand\"",
                           MissRuleName(params.misses)),
      "attention.misses");
}

absl::StatusOr<std::unique_ptr<TokenSelector>> Create(const AttentionParams& params,
                                                      const SelectionResources& resources) {
  return std::make_unique<H2oSelector>(params, resources.config->num_layers);
}

}  // namespace

const PolicySpec kH2oPolicy = {.policy = AttentionPolicy::kH2o,
                               .learns_from_prefill = true,
                               .memory = Memory,
                               .check = Check,
                               .create = Create};

}  // namespace tokenbutler
