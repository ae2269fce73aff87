#include "engine/selection/projected_scanner.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/kernels/top_k.h"
#include "engine/selection/principal_directions.h"

namespace tokenbutler {
namespace {

constexpr int kTopKScratch = 16;  // behind TopK's indices

class ProjectedScanner : public KeyScanner {
 public:
  ProjectedScanner(const ProjectedScannerOptions& options, const KvLayout& layout)
      : options_(options),
        layout_(options.layout),
        num_kv_heads_(layout.num_kv_heads),
        head_dim_(layout.head_dim),
        layers_(static_cast<size_t>(layout.num_layers)) {}

  std::unique_ptr<KeyScanner> Clone() const override {
    return std::make_unique<ProjectedScanner>(*this);
  }

  void Reserve(const KvLayout&, int group_size, int max_tokens, int max_found) override {
    const size_t kv_heads = static_cast<size_t>(num_kv_heads_);
    const size_t num_heads = kv_heads * static_cast<size_t>(group_size);
    scores_.reserve(kv_heads * static_cast<size_t>(max_tokens));
    indices_.reserve(kv_heads * (static_cast<size_t>(max_found) + kTopKScratch));
    queries_.reserve(num_heads * static_cast<size_t>(layout_.dim));
    lse_.reserve(num_heads);
    ProjectedScoresParams::Head longest;
    longest.end = max_tokens;
    heads_.assign(kv_heads, longest);
    ProjectedScoresParams params;
    params.layout = layout_;
    params.group_size = group_size;
    params.heads = heads_;
    const size_t one_block_each = kv_heads * static_cast<size_t>(layout_.block_size) * layout_.dim;
    floats_.reserve(std::max(one_block_each, ProjectedWorkspaceFloats(params)));
  }

  int Prepare(const LayerContext& context, int num_written) override {
    Layer& layer = layers_[context.layer];
    layer.num_full = num_written / layout_.block_size;
    const int num_scorable = layer.num_full * layout_.block_size;
    if (KeyProjections(context.layer) == nullptr) {
      if (num_scorable < kCalibrationTokens) return num_scorable;
      FindDirections(context, kCalibrationTokens);
    }
    ProjectBlocks(context);
    return num_scorable;
  }

  int64_t Scan(const LayerContext& context, const float* query, int begin, int end, int count,
               ScanReach, ScoredTokens* found) override {
    FinishBlocks(context);
    return FindTop(context, Project(context, query, options_.late), begin, end, count, found);
  }

  int64_t ScanPredicted(const LayerContext& context, const float* query, int begin, int end,
                        int count, ScanReach, ScoredTokens* found) override {
    FinishBlocks(context);
    if (!options_.predicted_are_projected) query = Project(context, query, options_.early);
    return FindTop(context, query, begin, end, count, found);
  }

 private:
  struct Layer {
    int num_full = 0;                                      // blocks whose rows are all written
    int num_projected = 0;                                 // of them, those that have a record
    std::shared_ptr<const std::vector<float>> directions;  // [Hkv, d_h, d']; null: none yet
  };

  size_t matrix_size() const { return static_cast<size_t>(head_dim_) * layout_.dim; }

  // [Hkv, d_h, d']; null: not found yet.
  const float* KeyProjections(int layer) const {
    if (options_.keys != nullptr) return options_.keys + layer * num_kv_heads_ * matrix_size();
    return layers_[layer].directions == nullptr ? nullptr : layers_[layer].directions->data();
  }

  ProjectedRecords RecordsOf(const LayerContext& context, int kv_head) const {
    return {.runs = context.state_blocks.data(),
            .offset = context.state_layout->offset(context.layer, kv_head, 0),
            .blocks_per_run = context.state_layout->kv_blocks(),
            .stride = context.state_layout->record_bytes};
  }

  void FindDirections(const LayerContext& context, int num_tokens) {
    auto directions = std::make_shared<std::vector<float>>(num_kv_heads_ * matrix_size());
    context.pool->ParallelFor(num_kv_heads_, [&](int h) {
      PrincipalDirections({.layout = context.layout,
                           .blocks = context.blocks,
                           .layer = context.layer,
                           .kv_head = h,
                           .num_rows = num_tokens},
                          layout_.dim, directions->data() + h * matrix_size());
    });
    layers_[context.layer].directions = std::move(directions);
  }

  void ProjectBlocks(const LayerContext& context) {
    Layer& layer = layers_[context.layer];
    const int first = layer.num_projected;
    const int num_tasks = (layer.num_full - first) * num_kv_heads_;
    if (num_tasks <= 0) return;
    const size_t rows = static_cast<size_t>(layout_.block_size) * layout_.dim;
    // Not one per task: a long prompt that is projected at once would need as much as its records.
    const int num_workers = std::min(num_tasks, context.pool->num_threads());
    floats_.resize(num_workers * rows);
    const float* projections = KeyProjections(context.layer);
    context.pool->ParallelFor(num_workers, [&](int worker) {
      for (int task = worker; task < num_tasks; task += num_workers) {
        const int block = first + task / num_kv_heads_, h = task % num_kv_heads_;
        const KvRows keys = context.keys(h, block);
        ProjectKeys({.layout = layout_,
                     .keys = keys.data,
                     .dtype = context.layout->dtype,
                     .key_stride_bytes = context.layout->row_bytes(),
                     .key_scales = keys.scales,
                     .head_dim = head_dim_,
                     .projection = projections + h * matrix_size(),
                     .record = context.record(h, block),
                     .workspace = floats_.data() + worker * rows});
      }
    });
    layer.num_projected = layer.num_full;
  }

  // What Prepare had too few keys for.
  void FinishBlocks(const LayerContext& context) {
    const Layer& layer = layers_[context.layer];
    if (KeyProjections(context.layer) == nullptr) {
      FindDirections(context, layer.num_full * layout_.block_size);
    }
    ProjectBlocks(context);
  }

  // [H, d'] of a query [H, d_h]. `projections` [L, H, d_h, d'], null: those of the keys.
  const float* Project(const LayerContext& context, const float* query, const float* projections) {
    const int num_heads = num_kv_heads_ * context.group_size, dim = layout_.dim;
    queries_.assign(static_cast<size_t>(num_heads) * dim, 0.0f);
    for (int head = 0; head < num_heads; ++head) {
      const float* matrix =
          projections == nullptr
              ? KeyProjections(context.layer) + head / context.group_size * matrix_size()
              : projections +
                    (static_cast<size_t>(context.layer) * num_heads + head) * matrix_size();
      float* out = queries_.data() + static_cast<size_t>(head) * dim;
      for (int i = 0; i < head_dim_; ++i) {
        const float q = query[static_cast<size_t>(head) * head_dim_ + i];
        for (int c = 0; c < dim; ++c) out[c] += q * matrix[static_cast<size_t>(i) * dim + c];
      }
    }
    return queries_.data();
  }

  void BeginHeads(const LayerContext& context) {
    heads_.clear();
    lse_.resize(static_cast<size_t>(num_kv_heads_) * context.group_size);
  }
  void AddHead(const ProjectedRecords& keys, const LayerContext& context, int h,
               const float* queries, int begin, int end, float* scores) {
    const size_t first_head = static_cast<size_t>(h) * context.group_size;
    if (begin >= end) return;
    heads_.push_back({.keys = keys,
                      .queries = queries + first_head * layout_.dim,
                      .offsets = context.lse == nullptr ? nullptr : context.lse + first_head,
                      .begin = begin,
                      .end = end,
                      .scores = scores,
                      .lse = lse_.data() + first_head});
  }

  // Scores what AddHead has added.
  void ScoreHeads(const LayerContext& context) {
    if (heads_.empty()) return;
    const bool is_softmax = options_.pooling == ScorePooling::kMaxSoftmax ||
                            options_.pooling == ScorePooling::kMeanSoftmax;
    ProjectedScoresParams params = {.layout = layout_,
                                    .group_size = context.group_size,
                                    .scale = options_.scale,
                                    .pooling = options_.pooling == ScorePooling::kMeanSoftmax
                                                   ? GroupPooling::kMeanExp
                                                   : GroupPooling::kMax,
                                    .heads = heads_};
    if (options_.pooling == ScorePooling::kMaxLogit) {
      for (ProjectedScoresParams::Head& head : heads_) head.offsets = nullptr;
    } else if (is_softmax || context.lse == nullptr) {
      floats_.resize(ProjectedWorkspaceFloats(params));
      params.workspace = floats_.data();
      ProjectedLogSumExp(params, *context.pool);
      for (ProjectedScoresParams::Head& head : heads_) head.offsets = head.lse;
    }
    ProjectedScores(params, *context.pool);
  }

  int64_t FindTop(const LayerContext& context, const float* queries, int begin, int end, int count,
                  ScoredTokens* found) {
    const size_t size = static_cast<size_t>(end - begin);
    const size_t room = static_cast<size_t>(count) + kTopKScratch;
    if (scores_.size() < num_kv_heads_ * size) scores_.resize(num_kv_heads_ * size);
    indices_.resize(num_kv_heads_ * room);
    BeginHeads(context);
    for (int h = 0; h < num_kv_heads_; ++h) {
      AddHead(RecordsOf(context, h), context, h, queries, begin, end, scores_.data() + h * size);
    }
    ScoreHeads(context);
    context.pool->ParallelFor(num_kv_heads_, [&](int h) {
      const float* scores = scores_.data() + h * size;
      int32_t* indices = indices_.data() + h * room;
      const int num_found = TopK(scores, end - begin, count, indices);
      for (int i = 0; i < num_found; ++i) {
        found->Add(h, begin + indices[i], scores[indices[i]]);
      }
    });
    return int64_t{num_kv_heads_} * (end - begin);
  }

  const ProjectedScannerOptions options_;
  const ProjectedLayout layout_;
  const int num_kv_heads_, head_dim_;
  std::vector<Layer> layers_;
  // Working memory.
  std::vector<float> floats_, queries_, lse_, scores_;
  std::vector<int32_t> indices_;
  std::vector<ProjectedScoresParams::Head> heads_;
};

}  // namespace

std::unique_ptr<KeyScanner> NewProjectedScanner(const ProjectedScannerOptions& options,
                                                const KvLayout& layout) {
  return std::make_unique<ProjectedScanner>(options, layout);
}

}  // namespace tokenbutler
