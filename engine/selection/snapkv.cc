#include "engine/selection/snapkv.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/kernels/attention_mass.h"
#include "engine/selection/attended_ranges.h"

namespace tokenbutler {
namespace {

constexpr int kPoolRadius = 3;  // a pooling kernel of 7

class SnapKvSelector : public TokenSelector {
 public:
  SnapKvSelector(const AttentionParams& params, int num_layers)
      : token_budget_(params.token_budget),
        window_(params.local_window),
        layers_(static_cast<size_t>(num_layers)) {}

  std::unique_ptr<TokenSelector> Clone() const override {
    return std::make_unique<SnapKvSelector>(*this);
  }

  void Reserve(const KvLayout& layout, int group_size, int) override {
    const size_t query_size =
        static_cast<size_t>(layout.num_kv_heads) * group_size * layout.head_dim;
    for (Layer& layer : layers_) {
      layer.positions.reserve(static_cast<size_t>(window_));
      layer.queries.reserve(window_ * query_size);
    }
  }

  // Which chunk is the prompt's last one is not known yet: the newest queries are kept, whatever
  // the chunks, and the choice is made at the first decode step that needs one.
  void OnPrefill(const LayerContext& context, const PrefillQueries& queries) override {
    Layer& layer = layers_[context.layer];
    layer.prompt_len = context.context_len;
    layer.has_chosen = false;
    for (int i = std::max(queries.num_rows - window_, 0); i < queries.num_rows; ++i) {
      Remember(context, context.context_len - queries.num_rows + i,
               queries.queries + i * queries.stride);
    }
  }

  void Select(const LayerContext& context, const float* query, TokenSelection* selection) override {
    Layer& layer = layers_[context.layer];
    if (!layer.has_chosen) Choose(context, &layer);
    // Of use when another prompt follows that is shorter than the window.
    Remember(context, context.context_len - 1, query);
    const int num_kv_heads = context.layout->num_kv_heads;
    const int window_begin = WindowBegin(layer);
    const int local_begin = std::max(window_begin, context.context_len - token_budget_);
    const int num_kept = token_budget_ - (context.context_len - local_begin);
    selection->Reset(num_kv_heads, token_budget_);
    for (int h = 0; h < num_kv_heads; ++h) {
      layer.heads[h].ShrinkTo(num_kept);
      for (const auto& [token, score] : layer.heads[h].kept) selection->Add(h, token, score);
      AddAlways(local_begin, context.context_len, h, selection);
    }
  }

 private:
  // What is kept of the tokens before the window, for one KV head.
  struct Head {
    std::vector<int32_t> ranked;                  // tokens, the most important first
    std::vector<std::pair<int32_t, float>> kept;  // the same, with scores, in token order

    void ShrinkTo(int count) {
      while (static_cast<int>(ranked.size()) > std::max(count, 0)) {
        kept.erase(std::lower_bound(kept.begin(), kept.end(), std::pair{ranked.back(), -1.0f}));
        ranked.pop_back();
      }
    }
  };
  struct Layer {
    int prompt_len = 0;
    // Ring of the newest queries: that of position p is row p % window_.
    std::vector<float> queries;  // [window_, num_heads * head_dim]
    std::vector<int> positions;  // [window_]; -1: none
    bool has_chosen = false;
    std::vector<Head> heads;  // [num_kv_heads]
  };

  int WindowBegin(const Layer& layer) const { return std::max(layer.prompt_len - window_, 0); }

  static size_t QuerySize(const LayerContext& context) {
    return static_cast<size_t>(context.layout->num_kv_heads) * context.group_size *
           context.layout->head_dim;
  }

  void Remember(const LayerContext& context, int position, const float* query) {
    Layer& layer = layers_[context.layer];
    const size_t size = QuerySize(context);
    if (layer.positions.empty()) {
      layer.positions.assign(static_cast<size_t>(window_), -1);
      layer.queries.resize(window_ * size);
    }
    const int row = position % window_;
    layer.positions[row] = position;
    std::copy_n(query, size, layer.queries.data() + row * size);
  }

  void Choose(const LayerContext& context, Layer* layer) {
    const int window_begin = WindowBegin(*layer);
    const int most = std::max(token_budget_ - (context.context_len - window_begin), 0);
    layer->heads.assign(static_cast<size_t>(context.layout->num_kv_heads), {});
    layer->has_chosen = true;
    if (window_begin == 0 || most == 0) return;
    const std::vector<float> queries = WindowQueries(context, *layer);
    std::vector<float> mass(static_cast<size_t>(layer->prompt_len));
    std::vector<float> pooled(static_cast<size_t>(window_begin));
    for (int h = 0; h < context.layout->num_kv_heads; ++h) {
      std::fill(mass.begin(), mass.end(), 0.0f);
      AddMass(context, queries, layer->prompt_len, h, mass.data());
      for (int t = 0; t < window_begin; ++t) {
        const int begin = std::max(t - kPoolRadius, 0);
        const int end = std::min(t + kPoolRadius + 1, window_begin);
        pooled[t] = *std::max_element(mass.begin() + begin, mass.begin() + end) /
                    static_cast<float>(context.group_size);
      }
      Rank(pooled, most, &layer->heads[h]);
    }
  }

  // The queries of the prompt's last tokens, in their order: those of the window, or fewer when a
  // short prompt follows decode steps that chose nothing.
  std::vector<float> WindowQueries(const LayerContext& context, const Layer& layer) const {
    const size_t size = QuerySize(context);
    if (layer.positions.empty()) return {};  // rows that were adopted without queries
    int begin = layer.prompt_len;
    while (begin > WindowBegin(layer) && layer.positions[(begin - 1) % window_] == begin - 1) {
      --begin;
    }
    std::vector<float> queries;
    for (int position = begin; position < layer.prompt_len; ++position) {
      const float* query = layer.queries.data() + position % window_ * size;
      queries.insert(queries.end(), query, query + size);
    }
    return queries;
  }

  // Adds the softmax rows of `queries`, each over the tokens that it sees.
  static void AddMass(const LayerContext& context, const std::vector<float>& queries,
                      int prompt_len, int kv_head, float* mass) {
    const size_t size = QuerySize(context);
    const int num_rows = static_cast<int>(queries.size() / size);
    std::vector<float> lse(static_cast<size_t>(num_rows) * context.group_size);
    AttentionMass({.queries = queries.data() + static_cast<size_t>(kv_head) * context.group_size *
                                                   context.layout->head_dim,
                   .stride = size,
                   .num_rows = num_rows,
                   .group_size = context.group_size,
                   .first_position = prompt_len - num_rows,
                   .blocks = context.blocks.data(),
                   .layout = *context.layout,
                   .layer = context.layer,
                   .kv_head = kv_head,
                   .softmax_scale = context.softmax_scale,
                   .mass = mass,
                   .lse = lse.data()},
                  *context.pool);
  }

  // Pooling makes equal scores common; of these the earlier token comes first.
  static void Rank(const std::vector<float>& scores, int most, Head* head) {
    std::vector<int32_t>& ranked = head->ranked;
    ranked.resize(scores.size());
    std::iota(ranked.begin(), ranked.end(), 0);
    const auto better = [&](int32_t a, int32_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    };
    const size_t count = std::min(static_cast<size_t>(most), ranked.size());
    std::partial_sort(ranked.begin(), ranked.begin() + count, ranked.end(), better);
    ranked.resize(count);
    ranked.shrink_to_fit();
    for (const int32_t token : ranked) head->kept.emplace_back(token, scores[token]);
    std::sort(head->kept.begin(), head->kept.end());
  }

  int token_budget_, window_;
  std::vector<Layer> layers_;
};

absl::StatusOr<std::unique_ptr<TokenSelector>> Create(const AttentionParams& params,
                                                      const SelectionResources& resources) {
  return std::make_unique<SnapKvSelector>(params, resources.config->num_layers);
}

// The window's queries, and the chosen tokens twice: ranked, and in order with their scores.
PolicyMemory Memory(const AttentionParams& params, const SelectionResources& resources,
                    int num_tokens) {
  const ModelConfig& config = *resources.config;
  const int64_t layers = config.num_layers, kept = std::min(params.token_budget, num_tokens);
  constexpr int64_t kKeptBytes = sizeof(int32_t) + sizeof(std::pair<int32_t, float>);
  const int64_t row_bytes = int64_t{config.num_heads} * config.head_dim * int64_t{sizeof(float)};
  const int64_t window = params.local_window * (row_bytes + int64_t{sizeof(int)});
  // While it chooses: sums, pooled sums and ranks of all tokens.
  const int64_t scratch = num_tokens * int64_t{2 * sizeof(float) + sizeof(int32_t)};
  return {.own = layers * (window + config.num_kv_heads * 2 * kept * kKeptBytes) + scratch};
}

}  // namespace

const PolicySpec kSnapKvPolicy = {.policy = AttentionPolicy::kSnapKv,
                                  .learns_from_prefill = true,
                                  .memory = Memory,
                                  .create = Create};

}  // namespace tokenbutler
