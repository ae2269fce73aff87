#include "tools/scoring/measured_model.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>
#include <utility>

#include "base/cgroup.h"
#include "engine/model_text.h"
#include "engine/predictor/predictor_file.h"
#include "engine/predictor/predictor_folder.h"
#include "engine/weights/loader.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

absl::StatusOr<LoadedModel> Load(const MeasuredModel::Options& options, int num_threads,
                                 std::string* rope_scaling) {
  LoadOptions load;
  load.num_threads = num_threads;
  if (!options.dtype.empty()) {
    load.compute_dtype = options.dtype == "float32" ? DType::kF32 : DType::kBF16;
  }
  fmt::print(stderr, "loading {}\n", options.model);
  ASSIGN_OR_RETURN(LoadedModel model, LoadModel(options.model, load));
  const int own = model.config.max_position;
  if (options.context_len > own) {
    const int factor = (options.context_len + own - 1) / own;
    RETURN_IF_ERROR(ApplyOverrides(
        {.rope_scaling = fmt::format(R"({{"rope_type": "yarn", "factor": {}}})", factor)},
        &model.config));
    *rope_scaling = fmt::format("yarn x {}", factor);
  }
  return model;
}

}  // namespace

int64_t AvailableKvBytes() {
  constexpr int64_t kReserve = int64_t{2} << 30;  // probes, activations, logits
  std::ifstream in("/proc/meminfo");
  int64_t kib = 0;
  for (std::string line; std::getline(in, line);) {
    if (std::sscanf(line.c_str(), "MemAvailable: %ld kB", &kib) == 1) break;
  }
  return std::min(MemoryLimitBytes(), kib * 1024) - kReserve;
}

size_t WeightBytesPerStep(const ModelWeights& weights) {
  size_t bytes = weights.final_norm.num_bytes() + weights.lm_head.num_bytes();
  for (const LayerWeights& w : weights.layers) {
    for (const TensorView* view :
         {&w.input_norm, &w.q_proj, &w.k_proj, &w.v_proj, &w.q_bias, &w.k_bias, &w.v_bias,
          &w.o_proj, &w.o_bias, &w.post_attention_norm, &w.gate_proj, &w.up_proj, &w.down_proj}) {
      bytes += view->num_bytes();
    }
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<MeasuredModel>> MeasuredModel::Create(const Options& options,
                                                                     ComputePool& pool) {
  auto measured = std::unique_ptr<MeasuredModel>(new MeasuredModel(pool));
  ASSIGN_OR_RETURN(LoadedModel model, Load(options, pool.num_threads(), &measured->rope_scaling_));
  measured->weight_bytes_ = WeightBytesPerStep(model.weights);
  StepRunnerOptions runner = options.runner;
  RETURN_IF_ERROR(measured->LoadPredictor(options, model.config, &runner));
  if (options.needs_tokenizer) {
    ASSIGN_OR_RETURN(ModelText text, TakeModelText(&model));
    measured->tokenizer_ = std::move(text.tokenizer);
  }
  DType kv_dtype = model.compute_dtype;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8}) {
    if (options.kv_dtype == DTypeName(dtype)) kv_dtype = dtype;
  }
  KvLayout layout = KvLayoutFor(model.config, kv_dtype);
  layout.block_size = options.block_size;
  const int64_t stride = static_cast<int64_t>(layout.block_bytes() + 63) / 64 * 64;
  const int64_t bytes = stride * options.num_blocks({.config = &model.config,
                                                     .weights = &model.weights,
                                                     .layout = layout,
                                                     .predictor = runner.predictor.get()});
  // Touched at once: a cache that does not fit must not end in the kernel killing somebody.
  if (const int64_t available = AvailableKvBytes(); bytes > available) {
    return ResourceExhaustedError("the KV cache takes {:.1f} GiB, {:.1f} GiB are available",
                                  bytes / 1073741824.0, available / 1073741824.0);
  }
  std::optional<KvStore::StagedOptions> staged;
  if (options.device_bytes) {
    staged = {.device_capacity_bytes = options.device_bytes(layout),
              .selections_kept = options.selections_kept};
  }
  ASSIGN_OR_RETURN(measured->kv_store_,
                   KvStore::Create(layout, {.capacity_bytes = bytes, .prefault = true}, staged));
  measured->block_pool_ = std::make_unique<BlockPool>(layout, measured->kv_store_->num_blocks());
  ASSIGN_OR_RETURN(measured->runner_,
                   StepRunner::Create(std::move(model.config), std::move(model.weights),
                                      measured->kv_store_.get(), &pool, runner));
  return measured;
}

absl::Status MeasuredModel::LoadPredictor(const Options& options, const ModelConfig& config,
                                          StepRunnerOptions* runner) {
  if (options.predictor.empty()) {
    runner->no_predictor = "--predictor names no file";
    return absl::OkStatus();
  }
  if (options.predictor != "auto") {
    ASSIGN_OR_RETURN(Predictor predictor, ReadPredictor(options.predictor));
    runner->predictor = std::make_shared<const Predictor>(std::move(predictor));
    predictor_path_ = options.predictor;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Rope rope,
                   Rope::Create(config.rope, config.head_dim, config.max_position));
  absl::StatusOr<FoundPredictor> found =
      FindPredictor({.folder = DefaultPredictorFolder()}, FingerprintOf(config, rope),
                    [&] { return ModelDigest(options.model); });
  if (absl::IsNotFound(found.status())) {
    runner->no_predictor = std::string(found.status().message());
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(found.status());
  runner->predictor = std::make_shared<const Predictor>(std::move(found->predictor));
  predictor_path_ = found->path;
  return absl::OkStatus();
}

std::string MeasuredModel::dtypes() const {
  const DType compute = runner_->compute_dtype(), kv = layout().dtype;
  if (compute == kv) return std::string(DTypeName(compute));
  return fmt::format("{}, KV {}", DTypeName(compute), DTypeName(kv));
}

std::vector<int32_t> MeasuredModel::Encode(std::string_view text) const {
  return tokenizer_->Encode(text, {});
}

absl::Status MeasuredSequence::Allocate(const AttentionParams& params, int num_tokens) {
  StepRunner& runner = model_.runner();
  RETURN_IF_ERROR(runner.CheckAttention(params));
  const int num_blocks = model_.layout().blocks_for(num_tokens);
  const int num_new = num_blocks - static_cast<int>(table_.blocks.size());
  const int num_state = params.sparse() ? runner.state_layout(params).blocks_for(num_blocks) : 0;
  BlockPool& pool = model_.blocks();
  if (!pool.Allocate(num_new, &table_.blocks) || !pool.Allocate(num_state, &table_.state_blocks)) {
    return ResourceExhaustedError("a sequence needs {} blocks, {} are free", num_new + num_state,
                                  pool.num_free());
  }
  if (!params.sparse()) return absl::OkStatus();
  ASSIGN_OR_RETURN(state_, runner.NewState(params, num_tokens, /*num_forks=*/0));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MeasuredSequence>> MeasuredSequence::Create(
    MeasuredModel& model, const AttentionParams& params, int num_tokens) {
  auto sequence = std::unique_ptr<MeasuredSequence>(new MeasuredSequence(model));
  RETURN_IF_ERROR(sequence->Allocate(params, num_tokens));
  return sequence;
}

absl::StatusOr<std::unique_ptr<MeasuredSequence>> MeasuredSequence::Branch(
    MeasuredModel& model, const AttentionParams& params, const MeasuredSequence& trunk,
    int prefix_tokens, int num_tokens, absl::Span<const PrefillQueries> queries) {
  auto sequence = std::unique_ptr<MeasuredSequence>(new MeasuredSequence(model));
  BlockTable& table = sequence->table_;
  const int num_shared = prefix_tokens / model.layout().block_size;
  table.blocks.assign(trunk.table_.blocks.begin(), trunk.table_.blocks.begin() + num_shared);
  model.blocks().Share(table.blocks);
  RETURN_IF_ERROR(sequence->Allocate(params, num_tokens));
  if (prefix_tokens % model.layout().block_size != 0) {
    model.store().CopyBlock(trunk.table_.blocks[num_shared], table.blocks[num_shared]);
  }
  table.num_tokens = prefix_tokens;
  if (sequence->state_ != nullptr) {
    RETURN_IF_ERROR(model.runner().AdoptRows(table, queries, sequence->state_.get()));
  }
  return sequence;
}

MeasuredSequence::~MeasuredSequence() {
  model_.blocks().Release(table_.blocks);
  model_.blocks().Release(table_.state_blocks);
}

absl::Status MeasuredSequence::Prefill(absl::Span<const int32_t> tokens, int chunk_tokens,
                                       const std::function<void(int)>& progress) {
  const int num_tokens = static_cast<int>(tokens.size());
  for (int at = 0; at < num_tokens; at += chunk_tokens) {
    const int count = std::min(chunk_tokens, num_tokens - at);
    StepPlan plan;
    plan.prefill_chunks.push_back({.block_table = &table_,
                                   .token_ids = tokens.subspan(at, count),
                                   .start_position = table_.num_tokens,
                                   .logits = LogitsWanted::kNone,
                                   .state = state_.get()});
    RETURN_IF_ERROR(model_.runner().Run(plan));
    table_.num_tokens += count;
    if (progress) progress(at + count);
  }
  return absl::OkStatus();
}

void MeasuredSequence::CopyIn(const PromptRows& rows) {
  const size_t bytes = model_.layout().block_bytes();
  for (size_t b = 0; b * bytes < rows.blocks.size(); ++b) {
    model_.store().WriteBlock(absl::MakeConstSpan(rows.blocks).subspan(b * bytes, bytes),
                              table_.blocks[b]);
  }
  table_.num_tokens = rows.num_tokens;
}

StepItem MeasuredSequence::DecodeItem(const int32_t* token) const {
  return {.block_table = &table_,
          .token_ids = {token, 1},
          .start_position = table_.num_tokens,
          .state = state_.get()};
}

absl::Status MeasuredSequence::Decode(int32_t token) {
  StepPlan plan;
  plan.decode.push_back(DecodeItem(&token));
  RETURN_IF_ERROR(model_.runner().Run(plan));
  ++table_.num_tokens;
  return absl::OkStatus();
}

}  // namespace tokenbutler
