#include "engine/step_runner.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "engine/predictor/predictor_file.h"
#include "engine/sequence_attention.h"

namespace tokenbutler {
namespace {

size_t NumLogitRows(const StepItem& item) {
  switch (item.logits) {
    case LogitsWanted::kNone:
      return 0;
    case LogitsWanted::kLast:
      return 1;
    case LogitsWanted::kAll:
      return item.token_ids.size();
  }
  return 0;
}

absl::Status CheckKvLayout(const KvLayout& layout, const KvLayout& wanted) {
  if (layout.num_layers != wanted.num_layers || layout.num_kv_heads != wanted.num_kv_heads ||
      layout.head_dim != wanted.head_dim) {
    return InvalidArgumentError(
        "the KV store has {} layers x {} KV heads x {}, must have {} x {} x {}", layout.num_layers,
        layout.num_kv_heads, layout.head_dim, wanted.num_layers, wanted.num_kv_heads,
        wanted.head_dim);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StepRunnerOptions::Validate() const {
  if (max_num_seqs < 1) {
    return InvalidArgumentError("max_num_seqs is {}, must be at least 1", max_num_seqs);
  }
  if (prefill_chunk_tokens < 1) {
    return InvalidArgumentError("prefill_chunk_tokens is {}, must be at least 1",
                                prefill_chunk_tokens);
  }
  if (!(recall_probe_rate >= 0 && recall_probe_rate <= 10000)) {
    return InvalidArgumentError("recall_probe_rate is {}, must be in [0, 10000]",
                                recall_probe_rate);
  }
  if (lookahead_layers < 1 || lookahead_layers > 16) {
    return InvalidArgumentError("lookahead_layers is {}, must be in [1, 16]", lookahead_layers);
  }
  if (predictor != nullptr && predictor->kind == PredictorKind::kPca) {
    return InvalidArgumentError("the predictor is of kind pca, must be tokenbutler or lookahead");
  }
  if (pca != nullptr && pca->kind != PredictorKind::kPca) {
    return InvalidArgumentError("the principal directions are of kind {}, must be pca",
                                PredictorKindName(pca->kind));
  }
  return absl::OkStatus();
}

KvLayout KvLayoutFor(const ModelConfig& config, DType kv_dtype) {
  return {.num_layers = config.num_layers,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .dtype = kv_dtype};
}

StepRunner::StepRunner(ModelConfig config, ModelWeights weights, KvStore& kv_store,
                       ComputePool& pool)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      kv_store_(kv_store),
      pool_(pool),
      decode_math_(pool) {}

absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(ModelConfig config,
                                                               ModelWeights weights,
                                                               KvStore* kv_store, ComputePool* pool,
                                                               const StepRunnerOptions& options) {
  RETURN_IF_ERROR(options.Validate());
  auto runner = std::unique_ptr<StepRunner>(
      new StepRunner(std::move(config), std::move(weights), *kv_store, *pool));
  const ModelConfig& model = runner->config_;
  ASSIGN_OR_RETURN(runner->transformer_, Transformer::Create(model, runner->weights_));
  const DType compute_dtype = runner->compute_dtype();
  RETURN_IF_ERROR(CheckKvLayout(kv_store->layout(), KvLayoutFor(model, kv_store->layout().dtype)));
  ASSIGN_OR_RETURN(Rope rope, Rope::Create(model.rope, model.head_dim, model.max_position));
  runner->rope_ = std::make_unique<Rope>(std::move(rope));
  for (const Predictor* predictor : {options.predictor.get(), options.pca.get()}) {
    if (predictor == nullptr) continue;
    RETURN_IF_ERROR(CheckArchitecture(*predictor, FingerprintOf(model, *runner->rope_)));
  }
  runner->predictor_ = options.predictor;
  runner->pca_ = options.pca;
  runner->resources_ = {.config = &model,
                        .weights = &runner->weights_,
                        .rope = runner->rope_.get(),
                        .layout = kv_store->layout(),
                        .recall_probe_rate = options.recall_probe_rate,
                        .predictor = options.predictor.get(),
                        .no_predictor = options.no_predictor,
                        .pca = options.pca.get(),
                        .lookahead_layers = options.lookahead_layers};
  runner->rows_ = std::make_unique<TokenRows>(model, compute_dtype, *kv_store);
  RETURN_IF_ERROR(
      runner->rows_->Reset(std::max(options.max_num_seqs, options.prefill_chunk_tokens)));
  RETURN_IF_ERROR(runner->decode_math_.Reserve(options.max_num_seqs, model));
  runner->prefill_math_ = PrefillMath::Create(compute_dtype, *pool);
  return runner;
}

absl::Status StepRunner::CheckItem(const StepItem& item) const {
  const int64_t end = int64_t{item.start_position} + static_cast<int64_t>(item.token_ids.size());
  const int64_t room =
      static_cast<int64_t>(item.block_table->blocks.size()) * kv_store_.layout().block_size;
  if (item.token_ids.empty()) return InvalidArgumentError("a step item has no tokens");
  if (item.start_position < 0 || end > room) {
    return InvalidArgumentError("positions are {} to {}, must be in [0, {}) of the block table",
                                item.start_position, end - 1, room);
  }
  for (const int32_t id : item.token_ids) {
    if (id < 0 || id >= config_.vocab_size) {
      return InvalidArgumentError("a token id is {}, must be in [0, {})", id, config_.vocab_size);
    }
  }
  return absl::OkStatus();
}

absl::Status StepRunner::Run(const StepPlan& plan) {
  for (const StepItem& item : plan.decode) {
    RETURN_IF_ERROR(CheckItem(item));
    if (item.token_ids.size() != 1) {
      return InvalidArgumentError("a decode item has {} tokens, must have 1",
                                  item.token_ids.size());
    }
  }
  for (const StepItem& chunk : plan.prefill_chunks) RETURN_IF_ERROR(CheckItem(chunk));
  RETURN_IF_ERROR(decode_logits_.Lay(plan.decode, vocab_size()));
  RETURN_IF_ERROR(prefill_logits_.Lay(plan.prefill_chunks, vocab_size()));
  const ComputePool::StepScope in_step(pool_);
  try {
    if (!plan.decode.empty()) RETURN_IF_ERROR(RunDecode(plan.decode));
    for (size_t c = 0; c < plan.prefill_chunks.size(); ++c) {
      float* logits = prefill_logits_.buffer.as<float>() +
                      prefill_logits_.offsets[c] * static_cast<size_t>(vocab_size());
      RETURN_IF_ERROR(RunPrefill(plan.prefill_chunks[c], logits));
    }
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("out of memory for the step's workspaces");
  } catch (const std::exception& error) {
    return InternalError("LibTorch failed in a step: {}", error.what());
  }
  return absl::OkStatus();
}

absl::Status StepRunner::RunDecode(absl::Span<const StepItem> items) {
  const int num_rows = static_cast<int>(items.size());
  RETURN_IF_ERROR(rows_->Reset(num_rows, TokenRows::Kind::kDecode));
  RETURN_IF_ERROR(decode_math_.Reserve(num_rows, config_));
  for (const StepItem& item : items) rows_->Add(item, *rope_);
  transformer_->Run(*rows_, decode_math_);
  for (const StepItem& item : items) {
    if (item.state != nullptr) static_cast<SequenceAttention*>(item.state)->EndStep();
  }

  // Neighbours whose logits are wanted go through the output head together.
  float* logits = decode_logits_.buffer.as<float>();
  for (int row = 0; row < num_rows;) {
    int end = row;
    while (end < num_rows && NumLogitRows(items[end]) > 0) ++end;
    if (end > row) {
      transformer_->Logits(*rows_, row, end - row, decode_math_,
                           logits + decode_logits_.offsets[row] * vocab_size());
    }
    row = end + 1;
  }
  return absl::OkStatus();
}

absl::Status StepRunner::CheckAttention(const AttentionParams& params) const {
  return CheckPolicy(params, resources_);
}

StateLayout StepRunner::state_layout(const AttentionParams& params) const {
  return StateLayoutFor(params, resources_);
}

absl::StatusOr<std::unique_ptr<SequenceState>> StepRunner::NewState(const AttentionParams& params,
                                                                    int max_tokens, int num_forks) {
  ASSIGN_OR_RETURN(std::unique_ptr<TokenSelector> selector, CreateSelector(params, resources_));
  try {
    return SequenceAttention::Create(params, resources_, kv_store_, std::move(selector), max_tokens,
                                     num_forks);
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("out of memory for what the policy keeps of {} tokens",
                                  max_tokens);
  }
}

absl::StatusOr<std::unique_ptr<SequenceState>> StepRunner::NewIdleState(
    const AttentionParams& params) {
  RETURN_IF_ERROR(CheckPolicy(params, resources_));
  return SequenceAttention::CreateOnHost(params, resources_, kv_store_, NewIdleSelector());
}

bool StepRunner::learns_from_prefill(const AttentionParams& params) const {
  return LearnsFromPrefill(params.policy);
}

PolicyMemory StepRunner::policy_memory(const AttentionParams& params, int num_tokens) const {
  return PolicyMemoryFor(params, resources_, num_tokens);
}

absl::StatusOr<std::unique_ptr<SequenceState>> StepRunner::NewObserver(
    const AttentionParams& params) {
  ASSIGN_OR_RETURN(std::unique_ptr<TokenSelector> selector, CreateSelector(params, resources_));
  return SequenceAttention::CreateOnHost(params, resources_, kv_store_, std::move(selector));
}

std::unique_ptr<SequenceState> StepRunner::NewObserver(
    std::unique_ptr<TokenSelector> selector) const {
  return SequenceAttention::CreateOnHost({}, resources_, kv_store_, std::move(selector));
}

absl::StatusOr<std::unique_ptr<SequenceState>> StepRunner::ContinueState(
    const SequenceState& observer, int max_tokens, int num_forks) {
  try {
    return static_cast<const SequenceAttention&>(observer).Continue(max_tokens, num_forks);
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("out of memory for what the policy keeps of {} tokens",
                                  max_tokens);
  }
}

absl::StatusOr<std::unique_ptr<SequenceState>> StepRunner::ForkState(const SequenceState& state) {
  return static_cast<const SequenceAttention&>(state).Fork();
}

absl::Status StepRunner::AdoptRows(const BlockTable& table,
                                   absl::Span<const PrefillQueries> queries, SequenceState* state) {
  const int64_t room = static_cast<int64_t>(table.blocks.size()) * kv_store_.layout().block_size;
  if (table.num_tokens < 0 || table.num_tokens > room) {
    return InvalidArgumentError("num_tokens is {}, must be in [0, {}], the room of the block table",
                                table.num_tokens, room);
  }
  if (!queries.empty() && static_cast<int>(queries.size()) != config_.num_layers) {
    return InvalidArgumentError("queries are those of {} layers, must be of none or of {}",
                                queries.size(), config_.num_layers);
  }
  const ComputePool::StepScope in_step(pool_);
  try {
    static_cast<SequenceAttention*>(state)->AdoptRows(table, queries, &pool_);
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("out of memory for what the policy keeps of {} tokens",
                                  table.num_tokens);
  }
  return absl::OkStatus();
}

absl::Status StepRunner::RunPrefill(const StepItem& chunk, float* logits) {
  const int num_rows = static_cast<int>(chunk.token_ids.size());
  RETURN_IF_ERROR(rows_->Reset(num_rows));
  rows_->Add(chunk, *rope_);
  transformer_->Run(*rows_, *prefill_math_);
  // The head's logits are float32 only from our kernel: LibTorch would round them to bf16.
  const int num_wanted = static_cast<int>(NumLogitRows(chunk));
  if (num_wanted > 0) {
    transformer_->Logits(*rows_, num_rows - num_wanted, num_wanted, decode_math_, logits);
  }
  return absl::OkStatus();
}

absl::Status StepRunner::LogitRows::Lay(absl::Span<const StepItem> items, int vocab_size) {
  offsets.assign(1, 0);
  for (const StepItem& item : items) offsets.push_back(offsets.back() + NumLogitRows(item));
  const size_t bytes = offsets.back() * static_cast<size_t>(vocab_size) * sizeof(float);
  if (buffer.size() >= bytes) return absl::OkStatus();
  buffer = Buffer();
  ASSIGN_OR_RETURN(buffer, Buffer::Allocate(bytes, MemoryKind::kHugePage));
  return absl::OkStatus();
}

absl::Span<const float> StepRunner::LogitRows::Of(int item, int vocab_size) const {
  const size_t vocab = static_cast<size_t>(vocab_size);
  return {buffer.as<float>() + offsets[item] * vocab, (offsets[item + 1] - offsets[item]) * vocab};
}

absl::Span<const float> StepRunner::decode_logits(int item) const {
  return decode_logits_.Of(item, vocab_size());
}

absl::Span<const float> StepRunner::prefill_logits(int chunk) const {
  return prefill_logits_.Of(chunk, vocab_size());
}

}  // namespace tokenbutler
