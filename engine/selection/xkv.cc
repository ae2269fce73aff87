#include "engine/selection/xkv.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/selection/kv_rows.h"
#include "engine/selection/low_rank.h"

namespace tokenbutler {
namespace {

constexpr int kGroupLayers = 4;
constexpr int kPublishedHiddenSize = 4096, kPublishedKeyRank = 512, kPublishedValueRank = 768;
constexpr int kChunkTokens = 512;  // reconstructed at a time
constexpr int kTaskTokens = 32;

int ScaledRank(int published, int hidden_size) {
  return std::max(1, published * hidden_size / kPublishedHiddenSize);
}

int KeyRank(const ModelConfig& config) { return ScaledRank(kPublishedKeyRank, config.hidden_size); }
int ValueRank(const ModelConfig& config) {
  return ScaledRank(kPublishedValueRank, config.hidden_size);
}

// Of blocks that hold one layer only, with the same distances between its rows.
KvLayout OneLayer(KvLayout layout) {
  layout.num_layers = 1;
  return layout;
}

class XkvSelector : public TokenSelector {
 public:
  explicit XkvSelector(const SelectionResources& resources)
      : num_layers_(resources.config->num_layers),
        key_rank_(KeyRank(*resources.config)),
        value_rank_(ValueRank(*resources.config)),
        rope_(resources.rope),
        rotations_(std::make_shared<std::vector<float>>()) {
    for (int l = 0; l < num_layers_; l += kGroupLayers) {
      groups_.push_back(std::make_shared<Group>());
    }
  }

  std::unique_ptr<TokenSelector> Clone() const override {
    return std::make_unique<XkvSelector>(*this);
  }

  void Reserve(const KvLayout& layout, int, int max_tokens) override {
    bases_.reserve(static_cast<size_t>(layout.blocks_for(max_tokens)));
    keys_.reserve(static_cast<size_t>(kChunkTokens) * LayerWidth(layout));
    values_.reserve(keys_.capacity());
  }

  void OnPrefill(const LayerContext& context, const PrefillQueries&) override {
    prompt_len_ = context.context_len;
    groups_[context.layer / kGroupLayers] = std::make_shared<Group>();
    rotations_ = std::make_shared<std::vector<float>>();
  }

  // Nothing is chosen: StandIn has all tokens.
  void Select(const LayerContext& context, const float*, TokenSelection* selection) override {
    selection->Reset(context.layout->num_kv_heads, 0);
  }

  absl::Span<std::byte* const> StandIn(const LayerContext& context) override {
    Group& group = *groups_[context.layer / kGroupLayers];
    if (rotations_->empty()) ComputeRotations();
    if (!group.is_made) Factorise(context, &group);
    PlaceBlocks(context);
    Reconstruct(context, group);
    CopyDecodedRows(context);
    return bases_;
  }

 private:
  struct Group {
    bool is_made = false;
    LowRankMatrix keys, values;  // [prompt_len, layers of the group * num_kv_heads * head_dim]
  };

  static int LayerWidth(const KvLayout& layout) { return layout.num_kv_heads * layout.head_dim; }

  // [cos, sin] of one of the prompt's positions. [head_dim]
  const float* RotationAt(int position) const {
    return rotations_->data() + size_t{2} * position * rope_->half_dim();
  }

  void ComputeRotations() {
    const int half = rope_->half_dim();
    rotations_->resize(size_t{2} * prompt_len_ * half);
    for (int t = 0; t < prompt_len_; ++t) {
      float* cos = rotations_->data() + size_t{2} * t * half;
      rope_->Rotation(t, cos, cos + half);
    }
  }

  void Factorise(const LayerContext& context, Group* group) const {
    const KvLayout& layout = *context.layout;
    const int first = context.layer / kGroupLayers * kGroupLayers;
    const int last = std::min(first + kGroupLayers, num_layers_);
    const int width = LayerWidth(layout), columns = (last - first) * width;
    const auto read = [&](bool keys, int begin, int end, float* out) {
      context.pool->ParallelFor(end - begin, [&](int i) {
        float* row = out + static_cast<size_t>(i) * columns;
        for (int layer = first; layer < last; ++layer) {
          for (int h = 0; h < layout.num_kv_heads; ++h, row += layout.head_dim) {
            const KvRow at{&layout, context.blocks, layer, h, begin + i};
            if (!keys) {
              at.LoadValue(row);
              continue;
            }
            at.LoadKey(row);
            RotateBack(RotationAt(begin + i), *rope_, row);
          }
        }
      });
    };
    group->keys = tokenbutler::Factorise(
        prompt_len_, columns, key_rank_,
        [&](int begin, int end, float* out) { read(true, begin, end, out); }, *context.pool);
    group->values = tokenbutler::Factorise(
        prompt_len_, columns, value_rank_,
        [&](int begin, int end, float* out) { read(false, begin, end, out); }, *context.pool);
    group->is_made = true;
  }

  int NumPromptBlocks(const LayerContext& context) const {
    return context.layout->blocks_for(prompt_len_);
  }

  // The prompt's blocks go to memory that holds one layer; later ones stay where they are. A
  // block's base, where nothing is, lies so far before its rows of this layer as the layout says.
  void PlaceBlocks(const LayerContext& context) {
    const KvLayout layout = OneLayer(*context.layout);
    const size_t num_blocks = static_cast<size_t>(NumPromptBlocks(context));
    rows_.resize(layout.blocks_bytes(num_blocks));
    bases_.assign(context.blocks.begin(), context.blocks.end());
    const auto rows = reinterpret_cast<uintptr_t>(rows_.data());
    const size_t before = context.layout->key_offset(context.layer, 0);
    for (size_t b = 0; b < num_blocks; ++b) {
      bases_[b] = reinterpret_cast<std::byte*>(rows + layout.block_offset(b) - before);
    }
  }

  void Reconstruct(const LayerContext& context, const Group& group) {
    const KvLayout& layout = *context.layout;
    const int width = LayerWidth(layout);
    const int first_column = context.layer % kGroupLayers * width;
    keys_.resize(static_cast<size_t>(kChunkTokens) * width);
    values_.resize(keys_.size());
    for (int begin = 0; begin < prompt_len_; begin += kChunkTokens) {
      const int end = std::min(begin + kChunkTokens, prompt_len_);
      MultiplyOut(group.keys, begin, end, first_column, width, keys_.data(), *context.pool);
      MultiplyOut(group.values, begin, end, first_column, width, values_.data(), *context.pool);
      context.pool->ParallelFor((end - begin + kTaskTokens - 1) / kTaskTokens, [&](int task) {
        const int task_begin = begin + task * kTaskTokens;
        for (int t = task_begin; t < std::min(task_begin + kTaskTokens, end); ++t) {
          float* key = keys_.data() + static_cast<size_t>(t - begin) * width;
          const float* value = values_.data() + static_cast<size_t>(t - begin) * width;
          for (int h = 0; h < layout.num_kv_heads; ++h) {
            const KvRow at{&layout, bases_, context.layer, h, t};
            Rotate(RotationAt(t), *rope_, key);
            at.Store(key, value);
            key += layout.head_dim;
            value += layout.head_dim;
          }
        }
      });
    }
  }

  // Into the last of the prompt's blocks.
  void CopyDecodedRows(const LayerContext& context) {
    const KvLayout& layout = *context.layout;
    const int end = std::min(context.context_len, NumPromptBlocks(context) * layout.block_size);
    for (int t = prompt_len_; t < end; ++t) {
      for (int h = 0; h < layout.num_kv_heads; ++h) {
        const KvRow from{&layout, context.blocks, context.layer, h, t};
        const KvRow to{&layout, bases_, context.layer, h, t};
        to.CopyFrom(from);
      }
    }
  }

  int num_layers_, key_rank_, value_rank_;
  const Rope* rope_;
  int prompt_len_ = 0;
  // Of the prompt: shared by all forks of it, made by the first that needs them at a decode step;
  // then they do not change. Another prefill begins new ones.
  std::vector<std::shared_ptr<Group>> groups_;
  std::shared_ptr<std::vector<float>> rotations_;  // [prompt_len, head_dim]
  // Working memory.
  std::vector<std::byte> rows_;
  std::vector<std::byte*> bases_;
  std::vector<float> keys_, values_;
};

absl::StatusOr<std::unique_ptr<TokenSelector>> Create(const AttentionParams&,
                                                      const SelectionResources& resources) {
  return std::make_unique<XkvSelector>(resources);
}

// The factors and rotations are shared; each fork multiplies out into memory of its own.
PolicyMemory Memory(const AttentionParams&, const SelectionResources& resources, int num_tokens) {
  const KvLayout& layout = resources.layout;
  const int64_t ranks = KeyRank(*resources.config) + ValueRank(*resources.config);
  const int64_t groups = (layout.num_layers + kGroupLayers - 1) / kGroupLayers;
  const int64_t width = int64_t{layout.num_kv_heads} * layout.head_dim;
  const int64_t factor_rows = num_tokens + kGroupLayers * width;
  const int64_t rotations = int64_t{num_tokens} * layout.head_dim * int64_t{sizeof(float)};
  // As in the largest groups: whoever asks before there is a cache does not know how large they
  // are.
  KvLayout one_layer = OneLayer(layout);
  one_layer.group_blocks = KvLayout::kGroupBlocks;
  const auto blocks = static_cast<size_t>(layout.blocks_for(num_tokens));
  const auto rows = static_cast<int64_t>(one_layer.blocks_bytes(blocks));
  return {.own = rows + 2 * kChunkTokens * width * int64_t{sizeof(float)},
          .shared = groups * factor_rows * ranks * int64_t{sizeof(BF16)} + rotations};
}

}  // namespace

const PolicySpec kXkvPolicy = {.policy = AttentionPolicy::kXkv, .memory = Memory, .create = Create};

}  // namespace tokenbutler
