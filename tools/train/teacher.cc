#include "tools/train/teacher.h"

#include <algorithm>
#include <numeric>

#include "engine/kernels/kv_row.h"

namespace tokenbutler {
namespace {

// Copies what a prefill shows of some positions.
class RowRecorder : public TokenSelector {
 public:
  RowRecorder(const TeacherView& view, int hidden_size, size_t query_size, TeacherPass* pass)
      : view_(view), hidden_size_(hidden_size), query_size_(query_size), pass_(pass) {}

  std::unique_ptr<TokenSelector> Clone() const override {
    return std::make_unique<RowRecorder>(*this);
  }

  void OnPrefill(const LayerContext& context, const PrefillQueries& queries) override {
    AlignedFloats& to = pass_->queries[context.layer];
    ForRows(context.context_len - queries.num_rows, queries.num_rows, [&](int row, int in_chunk) {
      std::copy_n(queries.queries + in_chunk * queries.stride, query_size_,
                  to.data() + row * query_size_);
    });
  }

  void OnPrefillHidden(const LayerContext& context, LayerPoint point,
                       const PrefillHidden& hidden) override {
    const size_t producer = static_cast<size_t>(context.layer / view_.layers_per_predictor);
    if (point != view_.point || context.layer % view_.layers_per_predictor != 0) return;
    if (producer >= pass_->hidden.size()) return;
    const size_t size = static_cast<size_t>(hidden_size_);
    AlignedFloats& to = pass_->hidden[producer];
    ForRows(context.context_len - hidden.num_rows, hidden.num_rows, [&](int row, int in_chunk) {
      std::copy_n(hidden.residual + in_chunk * size, size, to.data() + row * size);
    });
  }

  void Select(const LayerContext&, const float*, TokenSelection*) override {}

 private:
  // Calls fn(row, row in chunk) for the rows of the chunk that begins at `position`.
  template <typename Fn>
  void ForRows(int position, int num_rows, const Fn& fn) const {
    const std::vector<int>& rows = view_.rows;
    auto at = std::lower_bound(rows.begin(), rows.end(), position);
    for (; at != rows.end() && *at < position + num_rows; ++at) {
      fn(static_cast<size_t>(at - rows.begin()), static_cast<size_t>(*at - position));
    }
  }

  const TeacherView& view_;
  const int hidden_size_;
  const size_t query_size_;
  TeacherPass* pass_;
};

absl::Status CheckRows(absl::Span<const int> rows, int num_tokens) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const int least = i == 0 ? 0 : rows[i - 1] + 1;
    if (rows[i] < least || rows[i] >= num_tokens) {
      return InvalidArgumentError("rows[{}] is {}, must be in [{}, {})", i, rows[i], least,
                                  num_tokens);
    }
  }
  return absl::OkStatus();
}

}  // namespace

void TeacherPass::Take(size_t first, size_t step, TeacherPass* part) const {
  part->num_tokens = num_tokens;
  part->rows.clear();
  for (size_t row = first; row < rows.size(); row += step) part->rows.push_back(rows[row]);
  const auto take = [&](const std::vector<AlignedFloats>& from, std::vector<AlignedFloats>* to) {
    to->resize(from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      const size_t size = from[i].size() / rows.size();
      (*to)[i].resize(part->rows.size() * size);
      for (size_t row = 0; row < part->rows.size(); ++row) {
        std::copy_n(from[i].data() + (first + row * step) * size, size,
                    (*to)[i].data() + row * size);
      }
    }
  };
  take(queries, &part->queries);
  take(hidden, &part->hidden);
}

size_t TeacherPass::bytes() const {
  size_t floats = 0;
  for (const AlignedFloats& rows : queries) floats += rows.capacity();
  for (const AlignedFloats& rows : hidden) floats += rows.capacity();
  return floats * sizeof(float);
}

Teacher::Teacher(StepRunner& runner, const KvStore& kv_store, ComputePool& pool, int chunk_tokens)
    : runner_(runner),
      kv_store_(kv_store),
      pool_(pool),
      num_blocks_(kv_store.num_blocks()),
      chunk_tokens_(chunk_tokens) {
  table_.blocks.resize(static_cast<size_t>(num_blocks_));
  std::iota(table_.blocks.begin(), table_.blocks.end(), 0);
  kv_store_.BlockBases(table_, max_tokens(), &blocks_);
}

absl::Status Teacher::Run(absl::Span<const int32_t> tokens, const TeacherView& view,
                          TeacherPass* pass) {
  const ModelConfig& config = runner_.config();
  const int num_tokens = static_cast<int>(tokens.size());
  if (tokens.empty() || tokens.size() > static_cast<size_t>(max_tokens())) {
    return InvalidArgumentError("a sequence has {} tokens, must have 1 to {}", tokens.size(),
                                max_tokens());
  }
  RETURN_IF_ERROR(CheckRows(view.rows, num_tokens));
  const size_t num_rows = view.rows.size();
  const size_t query_size = static_cast<size_t>(config.num_heads) * config.head_dim;
  const size_t num_layers = static_cast<size_t>(config.num_layers);
  const size_t per_producer = static_cast<size_t>(view.layers_per_predictor);
  pass->num_tokens = num_tokens;
  pass->rows = view.rows;
  pass->queries.resize(num_layers);
  for (AlignedFloats& rows : pass->queries) rows.resize(num_rows * query_size);
  pass->hidden.resize((num_layers - 1 + per_producer - 1) / per_producer);
  for (AlignedFloats& rows : pass->hidden) rows.resize(num_rows * config.hidden_size);

  std::vector<PromptObserver> observers(1);
  observers[0].table = table_;
  observers[0].state = runner_.NewObserver(
      std::make_unique<RowRecorder>(view, config.hidden_size, query_size, pass));
  for (int at = 0; at < num_tokens; at += chunk_tokens_) {
    StepPlan plan;
    plan.prefill_chunks.push_back({.block_table = &table_,
                                   .token_ids = tokens.subspan(at, chunk_tokens_),
                                   .start_position = at,
                                   .logits = LogitsWanted::kNone,
                                   .observers = observers});
    RETURN_IF_ERROR(runner_.Run(plan));
  }
  return absl::OkStatus();
}

FirstKeys Teacher::Keys(int layer, int kv_head, int num_tokens) const {
  return {.layout = &kv_store_.layout(),
          .blocks = blocks_,
          .layer = layer,
          .kv_head = kv_head,
          .num_rows = num_tokens};
}

void Teacher::LoadKeys(int layer, int kv_head, int num_tokens, float* out) const {
  const KvLayout& layout = kv_store_.layout();
  for (int first = 0; first < num_tokens; first += layout.block_size) {
    const int count = std::min(layout.block_size, num_tokens - first);
    LoadKvRows(KeyRowsOf(layout, blocks_[first / layout.block_size], layer, kv_head), layout, count,
               out + static_cast<size_t>(first) * layout.head_dim);
  }
}

}  // namespace tokenbutler
