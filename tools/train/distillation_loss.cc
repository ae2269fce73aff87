#include "tools/train/distillation_loss.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <utility>

#include "tools/train/matrix_product.h"
#include "tools/train/softmax_rows.h"

namespace tokenbutler {
namespace {

// Rows and heads whose logits are at work at once: half a megabyte at 2048 tokens, twice.
constexpr int kStackedRows = 64;

float* Reserve(AlignedFloats& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
  return buffer.data();
}

}  // namespace

size_t DistillationLoss::Workspace::bytes() const {
  size_t floats = 0;
  for (const AlignedFloats* buffer :
       {&keys, &projected, &projected_gradients, &stacked, &teacher, &student, &queries[0],
        &queries[1], &query_gradients[0], &query_gradients[1]}) {
    floats += buffer->capacity();
  }
  return floats * sizeof(float);
}

size_t DistillationLoss::bytes() const {
  size_t bytes = 0;
  for (const Workspace& workspace : workspaces_) bytes += workspace.bytes();
  return bytes;
}

// The loss of one layer's KV head.
class DistillationLoss::Task {
 public:
  Task(const Teacher& teacher, const TeacherPass& pass, const ScoredLayer& layer, int kv_head,
       const LossOptions& options, Workspace& work)
      : teacher_(teacher),
        pass_(pass),
        layer_(layer),
        options_(options),
        work_(work),
        kv_head_(kv_head),
        group_(teacher.model().config->group_size()),
        head_dim_(teacher.model().config->head_dim),
        dim_(options.key_dim),
        num_rows_(static_cast<int>(pass.rows.size())),
        num_tokens_(pass.rows.back() + 1) {}

  LayerLoss Run() {
    ProjectKeys();
    for (const bool is_late : {false, true}) ProjectQueries(is_late);
    if (HasKeyGradients()) {
      std::fill_n(Reserve(work_.projected_gradients, TimesTokens(dim_)), TimesTokens(dim_), 0.0f);
    }
    LayerLoss sum;
    const int rows_per_block = std::max(1, kStackedRows / group_);
    for (int row = 0; row < num_rows_; row += rows_per_block) {
      AddBlock(row, std::min(row + rows_per_block, num_rows_), &sum);
    }
    for (const bool is_late : {false, true}) QueryGradients(is_late);
    if (HasKeyGradients()) KeyGradients();
    return sum;
  }

 private:
  const ScoredQueries& Of(bool is_late) const { return is_late ? layer_.late : layer_.early; }
  bool HasGradients(const ScoredQueries& queries) const {
    return queries.projection_gradients != nullptr || queries.query_gradients != nullptr;
  }
  bool HasKeyGradients() const { return layer_.key_projection_gradients != nullptr; }
  size_t TimesTokens(int size) const { return static_cast<size_t>(num_tokens_) * size; }
  size_t matrix_size() const { return static_cast<size_t>(head_dim_) * dim_; }
  int head(int g) const { return kv_head_ * group_ + g; }
  int width(const ScoredQueries& queries) const {
    return queries.projections == nullptr ? dim_ : head_dim_;
  }
  // Query head g's rows [R, width].
  Matrix QueriesOf(const ScoredQueries& queries, int g) const {
    return {.data = queries.queries + static_cast<size_t>(head(g)) * width(queries),
            .rows = num_rows_,
            .columns = width(queries),
            .stride = queries.stride};
  }
  // As they are scored: [T, d].
  Matrix Keys(int num_tokens) const {
    return {.data = layer_.key_projections == nullptr ? work_.keys.data() : work_.projected.data(),
            .rows = num_tokens,
            .columns = dim_};
  }

  void ProjectKeys() {
    float* keys = Reserve(work_.keys, TimesTokens(head_dim_));
    teacher_.LoadKeys(layer_.layer, kv_head_, num_tokens_, keys);
    if (layer_.key_projections == nullptr) return;
    Multiply({.data = keys, .rows = num_tokens_, .columns = head_dim_},
             {.data = layer_.key_projections + kv_head_ * matrix_size(),
              .rows = head_dim_,
              .columns = dim_},
             /*adds=*/false, Reserve(work_.projected, TimesTokens(dim_)));
  }

  // Lays out the group's queries as they are scored, row by row: [R, group, d], times the scale.
  void ProjectQueries(bool is_late) {
    const ScoredQueries& from = Of(is_late);
    if (from.queries == nullptr) return;
    const size_t row_size = static_cast<size_t>(group_) * dim_;
    float* to = Reserve(work_.queries[is_late], num_rows_ * row_size);
    Reserve(work_.query_gradients[is_late], num_rows_ * row_size);
    for (int g = 0; g < group_; ++g) {
      float* rows = to + static_cast<size_t>(g) * dim_;
      const Matrix queries = QueriesOf(from, g);
      if (from.projections != nullptr) {
        Multiply(queries,
                 {.data = from.projections + head(g) * matrix_size(),
                  .rows = head_dim_,
                  .columns = dim_},
                 /*adds=*/false, rows, row_size);
        continue;
      }
      for (int row = 0; row < num_rows_; ++row) {
        std::copy_n(queries.data + row * queries.stride, dim_, rows + row * row_size);
      }
    }
    for (size_t i = 0; i < num_rows_ * row_size; ++i) to[i] *= options_.scale;
  }

  // The real queries of rows [begin, end) times the softmax scale: [end - begin, group, d_h].
  const float* StackTeacherQueries(int begin, int end) {
    const size_t size = static_cast<size_t>(group_) * head_dim_;
    const size_t stride = size * teacher_.model().config->num_kv_heads;
    const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
    const float* from = pass_.queries[layer_.layer].data() + kv_head_ * size;
    float* to = Reserve(work_.stacked, kStackedRows * size);
    for (int row = begin; row < end; ++row, to += size) {
      for (size_t i = 0; i < size; ++i) to[i] = scale * from[row * stride + i];
    }
    return work_.stacked.data();
  }

  void AddBlock(int begin, int end, LayerLoss* sum) {
    const int stacked = (end - begin) * group_;
    const int size = pass_.rows[end - 1] + 1;  // tokens that any row of the block sees
    float* teacher = Reserve(work_.teacher, static_cast<size_t>(stacked) * size);
    Multiply({.data = StackTeacherQueries(begin, end), .rows = stacked, .columns = head_dim_},
             Matrix{.data = work_.keys.data(), .rows = size, .columns = head_dim_}.Transposed(),
             /*adds=*/false, teacher);
    work_.masses.resize(stacked);
    work_.neg_entropies.resize(stacked);
    work_.ranges.resize(stacked);
    for (int i = 0; i < stacked; ++i) {
      const int limit = pass_.rows[begin + i / group_] + 1;
      const int last = limit - options_.local_window;
      const int first = std::min(options_.sink_tokens, std::max(0, last));
      const TeacherRow row = SoftmaxOfTeacher(first, std::max(first, last), limit, size,
                                              teacher + static_cast<size_t>(i) * size);
      work_.ranges[i] = {first, std::max(first, last)};
      work_.masses[i] = row.mass;
      work_.neg_entropies[i] = row.neg_entropy;
    }
    if (Of(false).queries != nullptr) sum->early += AddStudent(false, begin, end, size);
    if (Of(true).queries != nullptr) sum->late += AddStudent(true, begin, end, size);
  }

  double AddStudent(bool is_late, int begin, int end, int size) {
    const int stacked = (end - begin) * group_;
    const size_t at = static_cast<size_t>(begin) * group_ * dim_;
    const Matrix queries = {
        .data = work_.queries[is_late].data() + at, .rows = stacked, .columns = dim_};
    float* student = Reserve(work_.student, static_cast<size_t>(stacked) * size);
    Multiply(queries, Keys(size).Transposed(), /*adds=*/false, student);
    double sum = 0;
    for (int i = 0; i < stacked; ++i) {
      const size_t row = static_cast<size_t>(i) * size;
      const auto [first, last] = work_.ranges[i];
      sum += StudentLoss(work_.teacher.data() + row, work_.masses[i], first, last, size,
                         options_.gradient_scale, student + row) +
             work_.neg_entropies[i];
    }
    const Matrix gradients = {.data = student, .rows = stacked, .columns = size};
    if (HasGradients(Of(is_late))) {
      Multiply(gradients, Keys(size), /*adds=*/false, work_.query_gradients[is_late].data() + at);
    }
    if (HasKeyGradients()) {
      Multiply(gradients.Transposed(), queries, /*adds=*/true, work_.projected_gradients.data());
    }
    return sum;
  }

  // From those of the queries as they are scored to those of what they are made of.
  void QueryGradients(bool is_late) {
    const ScoredQueries& to = Of(is_late);
    if (to.queries == nullptr || !HasGradients(to)) return;
    const size_t row_size = static_cast<size_t>(group_) * dim_;
    float* gradients = work_.query_gradients[is_late].data();
    for (size_t i = 0; i < num_rows_ * row_size; ++i) gradients[i] *= options_.scale;
    for (int g = 0; g < group_; ++g) {
      const Matrix scored = {.data = gradients + static_cast<size_t>(g) * dim_,
                             .rows = num_rows_,
                             .columns = dim_,
                             .stride = row_size};
      const Matrix queries = QueriesOf(to, g);
      if (to.projection_gradients != nullptr) {
        Multiply(queries.Transposed(), scored, /*adds=*/true,
                 to.projection_gradients + head(g) * matrix_size());
      }
      if (to.query_gradients == nullptr) continue;
      float* out = to.query_gradients + static_cast<size_t>(head(g)) * width(to);
      if (to.projections != nullptr) {
        const Matrix projection = {
            .data = to.projections + head(g) * matrix_size(), .rows = head_dim_, .columns = dim_};
        Multiply(scored, projection.Transposed(), /*adds=*/false, out, to.stride);
        continue;
      }
      for (int row = 0; row < num_rows_; ++row) {
        std::copy_n(scored.data + row * row_size, dim_, out + row * to.stride);
      }
    }
  }

  void KeyGradients() {
    const Matrix keys = {.data = work_.keys.data(), .rows = num_tokens_, .columns = head_dim_};
    Multiply(keys.Transposed(),
             {.data = work_.projected_gradients.data(), .rows = num_tokens_, .columns = dim_},
             /*adds=*/true, layer_.key_projection_gradients + kv_head_ * matrix_size());
  }

  const Teacher& teacher_;
  const TeacherPass& pass_;
  const ScoredLayer& layer_;
  const LossOptions& options_;
  Workspace& work_;
  const int kv_head_, group_, head_dim_, dim_, num_rows_;
  const int num_tokens_;  // that any row sees
};

std::vector<LayerLoss> DistillationLoss::Run(const TeacherPass& pass,
                                             absl::Span<const ScoredLayer> layers,
                                             const LossOptions& options) {
  const ModelConfig& config = *teacher_.model().config;
  const int num_tasks = static_cast<int>(layers.size()) * config.num_kv_heads;
  const int num_workers = std::min(num_tasks, pool_.num_threads());
  workspaces_.resize(static_cast<size_t>(pool_.num_threads()));
  sums_.assign(static_cast<size_t>(num_tasks), {});
  std::atomic<int> next = 0;
  std::exception_ptr error;
  std::once_flag is_first;
  pool_.ParallelFor(num_workers, [&](int worker) {
    try {
      for (int task = next++; task < num_tasks; task = next++) {
        sums_[task] = Task(teacher_, pass, layers[task / config.num_kv_heads],
                           task % config.num_kv_heads, options, workspaces_[worker])
                          .Run();
      }
    } catch (...) {
      std::call_once(is_first, [&] { error = std::current_exception(); });
    }
  });
  if (error) std::rethrow_exception(error);

  const double share = 1.0 / (static_cast<double>(pass.rows.size()) * config.num_heads);
  std::vector<LayerLoss> losses(layers.size());
  for (int task = 0; task < num_tasks; ++task) {
    LayerLoss& loss = losses[task / config.num_kv_heads];
    loss.early += share * sums_[task].early;
    loss.late += share * sums_[task].late;
  }
  return losses;
}

}  // namespace tokenbutler
