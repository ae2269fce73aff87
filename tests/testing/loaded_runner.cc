#include "tests/testing/loaded_runner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "engine/weights/loader.h"

namespace tokenbutler {
namespace {

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoadedRunner>> LoadedRunner::Load(const std::string& path,
                                                                 const Options& options) {
  LoadOptions load;
  load.compute_dtype = options.compute_dtype;
  ASSIGN_OR_RETURN(LoadedModel model, LoadModel(path, load));
  if (options.adjust) options.adjust(model.config);

  auto loaded = std::unique_ptr<LoadedRunner>(new LoadedRunner(options.num_threads));
  KvLayout layout = KvLayoutFor(model.config, options.kv_dtype.value_or(options.compute_dtype));
  layout.block_size = options.block_size;
  const int64_t stride = static_cast<int64_t>(layout.block_bytes() + 63) / 64 * 64;
  ASSIGN_OR_RETURN(
      loaded->kv_store_,
      KvStore::Create(layout, {.capacity_bytes = stride * options.num_blocks}, options.staged));
  ASSIGN_OR_RETURN(loaded->runner_,
                   StepRunner::Create(std::move(model.config), std::move(model.weights),
                                      loaded->kv_store_.get(), &loaded->pool_, options.runner));
  return loaded;
}

BlockTable LoadedRunner::NewSequence(int num_tokens, const AttentionParams& attention) {
  BlockTable table;
  const auto take = [&](int count, std::vector<BlockId>* blocks) {
    for (; count > 0; --count) {
      if (num_taken_ == kv_store_->num_blocks()) throw std::runtime_error("no blocks left");
      blocks->push_back(num_taken_++);
    }
  };
  const int num_blocks = kv_store_->layout().blocks_for(num_tokens);
  take(num_blocks, &table.blocks);
  take(runner_->state_layout(attention).blocks_for(num_blocks), &table.state_blocks);
  return table;
}

std::unique_ptr<SequenceState> LoadedRunner::NewState(const AttentionParams& attention) {
  if (!attention.sparse()) return nullptr;
  const int max_tokens = kv_store_->num_blocks() * kv_store_->layout().block_size;
  auto state = runner_->NewState(attention, max_tokens, /*num_forks=*/0);
  ThrowIfError(state.status());
  return *std::move(state);
}

std::vector<float> LoadedRunner::Prefill(BlockTable& sequence, absl::Span<const int32_t> tokens,
                                         int chunk_tokens, SequenceState* state) {
  std::vector<float> logits;
  while (!tokens.empty()) {
    const absl::Span<const int32_t> chunk = tokens.subspan(0, chunk_tokens);
    StepPlan plan;
    plan.prefill_chunks.push_back({.block_table = &sequence,
                                   .token_ids = chunk,
                                   .start_position = sequence.num_tokens,
                                   .logits = LogitsWanted::kAll,
                                   .state = state});
    ThrowIfError(runner_->Run(plan));
    const absl::Span<const float> got = runner_->prefill_logits(0);
    logits.insert(logits.end(), got.begin(), got.end());
    sequence.num_tokens += static_cast<int>(chunk.size());
    tokens.remove_prefix(chunk.size());
  }
  return logits;
}

std::vector<float> LoadedRunner::Decode(BlockTable& sequence, absl::Span<const int32_t> tokens,
                                        SequenceState* state) {
  std::vector<float> logits;
  for (size_t i = 0; i < tokens.size(); ++i) {
    StepPlan plan;
    plan.decode.push_back({.block_table = &sequence,
                           .token_ids = tokens.subspan(i, 1),
                           .start_position = sequence.num_tokens,
                           .state = state});
    ThrowIfError(runner_->Run(plan));
    const absl::Span<const float> got = runner_->decode_logits(0);
    logits.insert(logits.end(), got.begin(), got.end());
    ++sequence.num_tokens;
  }
  return logits;
}

std::vector<int32_t> LoadedRunner::Greedy(BlockTable& sequence, absl::Span<const float> logits,
                                          int num_tokens, SequenceState* state) {
  std::vector<int32_t> ids = {ArgMax(logits)};
  while (static_cast<int>(ids.size()) < num_tokens) {
    ids.push_back(ArgMax(Decode(sequence, {&ids.back(), 1}, state)));
  }
  return ids;
}

int32_t ArgMax(absl::Span<const float> values) {
  return static_cast<int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

std::vector<double> LogSoftmax(absl::Span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  const double lse = max + std::log(sum);
  std::vector<double> out;
  for (const float x : logits) out.push_back(x - lse);
  return out;
}

double MaxAbsDifference(absl::Span<const float> a, absl::Span<const float> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::quiet_NaN();
  double max = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    if (std::isnan(difference)) return difference;
    max = std::max(max, difference);
  }
  return max;
}

}  // namespace tokenbutler
