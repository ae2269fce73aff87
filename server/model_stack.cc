#include "server/model_stack.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

#include "base/cpu_features.h"
#include "base/logging.h"
#include "engine/model_text.h"
#include "engine/weights/loader.h"
#include "offload/host_tier.h"
#include "server/predictor_files.h"

namespace tokenbutler {
namespace {

absl::StatusOr<LoadedModel> LoadWeights(const ServerConfig& config) {
  LogInfo("loading {}", config.model_path);
  LoadOptions options;
  options.compute_dtype = config.compute_dtype;
  options.overrides = config.overrides;
  options.num_threads = config.num_threads;
  options.progress = [last = int64_t{0}](int64_t done, int64_t total) mutable {
    const int64_t tenth = total > 0 ? done * 10 / total : 0;
    if (std::exchange(last, tenth) != tenth) LogInfo("loading: {} %", tenth * 10);
  };
  return LoadModel(config.model_path, options);
}

absl::Status BuildText(LoadedModel* model, ModelStack* stack) {
  ASSIGN_OR_RETURN(ModelText text, TakeModelText(model));
  stack->tokenizer = std::move(text.tokenizer);
  stack->chat_template = std::move(text.chat_template);
  stack->chat_template_error = std::move(text.chat_template_error);
  if (!stack->chat_template_error.empty()) {
    // Text and token ids can still be served.
    LogWarning("the model's chat template cannot be used, chat input will be refused: {}",
               stack->chat_template_error);
  }
  return absl::OkStatus();
}

int64_t KvCapacityBytes(const ServerConfig& config, const KvLayout& layout,
                        const LoadedModel& model, const StepRunnerOptions& runner,
                        const MemoryReadings& memory) {
  if (config.kv_capacity_bytes) return *config.kv_capacity_bytes;
  const int64_t device = config.staged ? config.staged->device_capacity_bytes : 0;
  const int64_t free = DefaultKvCapacityBytes(
      {.limit_bytes = memory.limit_bytes(), .used_bytes = memory.resident_bytes() + device});
  // More than every sequence at its longest is never used.
  const int blocks = layout.blocks_for(model.config.max_position);
  const SelectionResources resources = {.config = &model.config,
                                        .weights = &model.weights,
                                        .layout = layout,
                                        .predictor = runner.predictor.get(),
                                        .pca = runner.pca.get()};
  const StateLayout state = StateLayoutFor(config.attention, resources);
  const int state_blocks = state.kv_blocks() > 0 ? state.blocks_for(blocks) : 0;
  const PolicyMemory elsewhere =
      PolicyMemoryFor(config.attention, resources, model.config.max_position);
  const int64_t per_sequence =
      (blocks + state_blocks) * static_cast<int64_t>(layout.block_bytes()) + elsewhere.own +
      elsewhere.shared;
  const int64_t most = config.engine.max_num_seqs * per_sequence;
  return std::min(free, most);
}

absl::StatusOr<std::unique_ptr<KvStore>> BuildKvStore(const ServerConfig& config,
                                                      const KvLayout& layout,
                                                      int64_t capacity_bytes, int64_t limit_bytes) {
  if (capacity_bytes > limit_bytes) {
    LogWarning(
        "--kv-capacity is {} bytes, more than the {} bytes of memory: using it all ends in "
        "the process being killed",
        capacity_bytes, limit_bytes);
  }
  HostTier::Options tier;
  tier.capacity_bytes = capacity_bytes;
  tier.prefault = config.kv_prefault;
  std::optional<KvStore::StagedOptions> staged;
  if (config.staged) {
    KvStore::StagedOptions options;
    options.device_capacity_bytes = config.staged->device_capacity_bytes;
    options.selections_kept = config.staged->selections_kept;
    options.transfers.link_gbps = config.staged->link_gbps;
    options.transfers.link_latency_us = config.staged->link_latency_us;
    staged = options;
  }
  auto kv_store = KvStore::Create(layout, tier, staged);
  if (kv_store.ok()) return kv_store;
  return Annotate(kv_store.status(),
                  config.staged ? "--kv-capacity, --device-kv-capacity" : "--kv-capacity");
}

// How requests attend that do not say. When no flag says it either and the model does not go with
// the default, that is dense attention.
absl::StatusOr<AttentionParams> DefaultAttention(const ServerConfig& config,
                                                 const StepRunner& runner) {
  const absl::Status status = runner.CheckAttention(config.attention);
  if (status.ok()) return config.attention;
  if (config.attention_flags.any()) return Annotate(status, "the attention flags");
  LogWarning("attention is dense unless a request says otherwise: {}",
             std::string(status.message()));
  return AttentionParams{};
}

absl::Status BuildEngine(const ServerConfig& config, LoadedModel model,
                         const MemoryReadings& memory, Clock* clock, Metrics* metrics,
                         ModelStack* stack, PredictorInUse* predictor) {
  EngineConfig engine = config.engine;
  engine.max_model_len = model.config.max_position;
  StepRunnerOptions runner;
  runner.max_num_seqs = engine.max_num_seqs;
  runner.prefill_chunk_tokens = engine.prefill_chunk_tokens;
  runner.recall_probe_rate = config.recall_probe_rate;
  // Before the KV cache's share is known: it gets of what is left.
  ASSIGN_OR_RETURN(*predictor, LoadPredictorFiles(config.predictor_files, config.model_path,
                                                  model.config, &runner));
  KvLayout layout = KvLayoutFor(model.config, config.kv_cache_dtype.value_or(model.compute_dtype));
  layout.block_size = config.block_size;
  ASSIGN_OR_RETURN(
      stack->kv_store,
      BuildKvStore(config, layout, KvCapacityBytes(config, layout, model, runner, memory),
                   memory.limit_bytes()));
  stack->block_pool = std::make_unique<BlockPool>(layout, stack->kv_store->num_blocks());
  stack->compute_pool = std::make_unique<ComputePool>(config.num_threads > 0 ? config.num_threads
                                                                             : DefaultNumThreads());
  ASSIGN_OR_RETURN(stack->runner,
                   StepRunner::Create(std::move(model.config), std::move(model.weights),
                                      stack->kv_store.get(), stack->compute_pool.get(), runner));
  ASSIGN_OR_RETURN(stack->engine,
                   Engine::Create(engine, {.runner = stack->runner.get(),
                                           .tokenizer = stack->tokenizer.get(),
                                           .block_pool = stack->block_pool.get(),
                                           .clock = clock,
                                           .metrics = metrics,
                                           .compute_pool = stack->compute_pool.get()}));
  return absl::OkStatus();
}

// No tokenizer makes fewer tokens of a text than this allows; NFC may shorten a text first.
size_t MaxTextBytes(const Tokenizer& tokenizer, int max_model_len) {
  constexpr size_t kShrinkage = 4;
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.TokenBytes(id).size());
  }
  return kShrinkage * longest * static_cast<size_t>(max_model_len);
}

int64_t StateBytesPerToken(const StateLayout& state, const KvLayout& layout) {
  const int64_t bytes =
      static_cast<int64_t>(state.record_bytes) * state.num_layers * state.num_kv_heads;
  return bytes / layout.block_size;
}

}  // namespace

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

absl::StatusOr<ModelStack> BuildModelStack(const ServerConfig& config, Clock* clock,
                                           Metrics* metrics, const MemoryReadings& memory) {
  ModelStack stack;
  ASSIGN_OR_RETURN(LoadedModel model, LoadWeights(config));
  RETURN_IF_ERROR(BuildText(&model, &stack));
  auto served = std::make_shared<ServedModel>();
  served->name = config.served_model_name.empty() ? model.config.name : config.served_model_name;
  served->config = model.config;
  served->dtype = DTypeName(model.compute_dtype);
  served->max_model_len = model.config.max_position;
  served->max_num_seqs = config.engine.max_num_seqs;
  served->max_text_bytes = MaxTextBytes(*stack.tokenizer, served->max_model_len);
  if (stack.chat_template) served->chat_template_source = *model.chat_template;
  RETURN_IF_ERROR(
      BuildEngine(config, std::move(model), memory, clock, metrics, &stack, &served->predictor));
  ASSIGN_OR_RETURN(served->attention, DefaultAttention(config, *stack.runner));
  if (config.attention_flags.setting && served->attention.sparse()) {
    served->attention_setting = AttentionSettingName(*config.attention_flags.setting);
  }
  served->attention_state_bytes_per_token =
      StateBytesPerToken(stack.runner->state_layout(served->attention), stack.kv_store->layout());
  if (config.staged) {
    served->offload_backend = "staged";
    served->link_is_modelled = config.staged->link_gbps > 0 || config.staged->link_latency_us > 0;
  }
  served->kv_dtype = DTypeName(stack.kv_store->layout().dtype);
  served->kv_bytes_per_token = static_cast<int64_t>(stack.kv_store->layout().token_bytes());
  served->engine = stack.engine.get();
  served->tokenizer = stack.tokenizer.get();
  served->chat_template = stack.chat_template.get();
  served->chat_template_error = stack.chat_template_error;
  stack.served = std::move(served);
  return stack;
}

}  // namespace tokenbutler
