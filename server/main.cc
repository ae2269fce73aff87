// tokenbutler-server. Builds the object graph from top to bottom; docs/operations.md is for users.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/compute_pool.h"
#include "base/cpu_features.h"
#include "base/logging.h"
#include "base/metrics.h"
#include "base/status.h"
#include "engine/chat_template/chat_template.h"
#include "engine/engine.h"
#include "engine/step_runner.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"
#include "engine/weights/loader.h"
#include "google/protobuf/stubs/logging.h"
#include "offload/block_pool.h"
#include "offload/host_tier.h"
#include "offload/kv_store.h"
#include "server/grpc_server.h"
#include "server/inference_service.h"
#include "server/lifecycle.h"
#include "server/metrics_server.h"
#include "server/open_streams.h"
#include "server/predictor_files.h"
#include "server/request_preparer.h"
#include "server/server_config.h"
#include "server/shutdown_signals.h"
#include "server/version.h"
#include "server/write_threads.h"

namespace tokenbutler {
namespace {

// glibc gives large blocks back to the kernel, and the page faults of taking them again dominate
// prefill. 32 MiB is the largest threshold that it accepts.
void KeepLargeAllocations() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
}

// protobuf reports each damaged message on standard error; our answers to the client say it better.
void QuietProtobuf() {
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel level, const char*, int, const std::string& message) {
        const bool fatal = level == google::protobuf::LOGLEVEL_FATAL;
        LogLine(fatal ? LogLevel::kError : LogLevel::kDebug, {}, "protobuf: " + message);
      });
}

BuildLabels ThisBuild() {
  return {.version = kVersion,
          .torch = TOKENBUTLER_TORCH_VERSION,
          .cuda = "none",
          .isa = std::string(CpuTargetName(DetectCpuTarget()))};
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

// Everything that depends on the model, in the order of construction.
struct ModelStack {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // null when the model has none, or for:
  std::string chat_template_error;
  std::unique_ptr<KvStore> kv_store;
  std::unique_ptr<BlockPool> block_pool;
  std::unique_ptr<ComputePool> compute_pool;
  std::unique_ptr<StepRunner> runner;
  std::unique_ptr<Engine> engine;
  std::shared_ptr<ServedModel> served;
};

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
  if (std::holds_alternative<std::monostate>(model->tokenizer)) {
    return InvalidArgumentError(
        "the model has no tokenizer: a folder needs tokenizer.json, a GGUF file the keys "
        "tokenizer.ggml.*");
  }
  TokenizerSpec spec;
  if (const auto* files = std::get_if<HfTokenizerFiles>(&model->tokenizer)) {
    ASSIGN_OR_RETURN(HfTokenizer hf,
                     ReadHfTokenizer(files->tokenizer_json, files->tokenizer_config_json));
    spec = std::move(hf.spec);
    spec.extra_eos_ids.insert(spec.extra_eos_ids.end(), model->generation.eos_ids.begin(),
                              model->generation.eos_ids.end());
    if (hf.chat_template) model->chat_template = std::move(hf.chat_template);
    if (!hf.bos_token.empty()) model->bos_token = std::move(hf.bos_token);
    if (!hf.eos_token.empty()) model->eos_token = std::move(hf.eos_token);
  } else {
    spec = std::move(std::get<TokenizerSpec>(model->tokenizer));
  }
  ASSIGN_OR_RETURN(stack->tokenizer, Tokenizer::Create(std::move(spec)));
  for (const int32_t id : stack->tokenizer->eos_ids()) {
    if (id < model->config.vocab_size) continue;
    return InvalidArgumentError(
        "the tokenizer ends a text with token id {}, must be in [0, {}), the model's vocabulary: "
        "do tokenizer and weights belong together?",
        id, model->config.vocab_size);
  }
  if (!model->chat_template) return absl::OkStatus();
  TemplateOptions options;
  options.bos_token = model->bos_token;
  options.eos_token = model->eos_token;
  auto compiled = ChatTemplate::Compile(*model->chat_template, std::move(options));
  if (compiled.ok()) {
    stack->chat_template = *std::move(compiled);
  } else {
    // Text and token ids can still be served.
    stack->chat_template_error = std::string(compiled.status().message());
    LogWarning("the model's chat template cannot be used, chat input will be refused: {}",
               stack->chat_template_error);
  }
  return absl::OkStatus();
}

int64_t KvCapacityBytes(const ServerConfig& config, const KvLayout& layout,
                        const LoadedModel& model) {
  if (config.kv_capacity_bytes) return *config.kv_capacity_bytes;
  const int64_t device = config.staged ? config.staged->device_capacity_bytes : 0;
  const int64_t free = DefaultKvCapacityBytes(
      {.limit_bytes = MemoryLimitBytes(), .used_bytes = ResidentBytes() + device});
  // More than every sequence at its longest is never used.
  const int blocks = layout.blocks_for(model.config.max_position);
  const SelectionResources resources = {
      .config = &model.config, .weights = &model.weights, .layout = layout};
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

absl::Status BuildEngine(const ServerConfig& config, LoadedModel model, Clock* clock,
                         Metrics* metrics, ModelStack* stack) {
  EngineConfig engine = config.engine;
  engine.max_model_len = model.config.max_position;
  KvLayout layout = KvLayoutFor(model.config, model.compute_dtype);
  layout.block_size = config.block_size;
  HostTier::Options tier;
  tier.capacity_bytes = KvCapacityBytes(config, layout, model);
  if (tier.capacity_bytes > MemoryLimitBytes()) {
    LogWarning(
        "--kv-capacity is {} bytes, more than the {} bytes of memory: using it all ends in "
        "the process being killed",
        tier.capacity_bytes, MemoryLimitBytes());
  }
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
  if (!kv_store.ok()) {
    return Annotate(kv_store.status(),
                    config.staged ? "--kv-capacity, --device-kv-capacity" : "--kv-capacity");
  }
  stack->kv_store = *std::move(kv_store);
  stack->block_pool = std::make_unique<BlockPool>(layout, stack->kv_store->num_blocks());
  stack->compute_pool = std::make_unique<ComputePool>(config.num_threads > 0 ? config.num_threads
                                                                             : DefaultNumThreads());
  StepRunnerOptions runner;
  runner.max_num_seqs = engine.max_num_seqs;
  runner.prefill_chunk_tokens = engine.prefill_chunk_tokens;
  runner.recall_probe_rate = config.recall_probe_rate;
  RETURN_IF_ERROR(
      LoadPredictorFiles(config.predictor_files, config.model_path, model.config, &runner));
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

absl::StatusOr<ModelStack> BuildModelStack(const ServerConfig& config, Clock* clock,
                                           Metrics* metrics) {
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
  RETURN_IF_ERROR(BuildEngine(config, std::move(model), clock, metrics, &stack));
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

absl::Status WritePortFile(const std::string& path, int port) {
  if (path.empty()) return absl::OkStatus();
  // Renamed into place, so that a reader never sees half a number.
  const std::string temporary = path + ".new";
  {
    std::ofstream file(temporary);
    file << port << "\n";
    if (!file.flush()) return UnavailableError("cannot write {}", temporary);
  }
  if (std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return UnavailableError("cannot write {}", path);
}

void LogConfiguration(const ServerConfig& config, const BuildLabels& build) {
  LogInfo("tokenbutler-server {} (LibTorch {}, {})", build.version, build.torch, build.isa);
  std::string flags;
  for (const auto& [flag, value] : config.effective) flags += fmt::format(" {}={}", flag, value);
  LogInfo("configuration:{}", flags);
}

// From outside in: nobody is told to come here, nobody new gets in, who is in may finish, the rest
// is ended.
void Drain(const ServerConfig& config, Lifecycle* lifecycle, OpenStreams* streams,
           GrpcServer* grpc_server, Engine* engine) {
  constexpr absl::Duration kCancelLimit = absl::Seconds(5);
  lifecycle->StartDraining();
  grpc_server->SetReady(false);
  engine->StartDraining();
  if (!streams->WaitUntilEmpty(config.shutdown_grace)) {
    LogWarning("the grace period of {} is over: ending what still runs",
               absl::FormatDuration(config.shutdown_grace));
    streams->EndAll(
        UnavailableError("the server is shutting down and its grace period of {} is "
                         "over",
                         absl::FormatDuration(config.shutdown_grace)));
    streams->WaitUntilEmpty(kCancelLimit);
  }
  // What is left are health watches, and clients that do not take in their last messages.
  grpc_server->Shutdown(absl::Milliseconds(200));
  streams->WaitUntilEmpty(kCancelLimit);
}

absl::Status Serve(const ServerConfig& config) {
  Lifecycle lifecycle;
  ShutdownSignals signals([&lifecycle] {
    // Loading cannot be interrupted, and nothing is open that would have to be closed.
    if (lifecycle.state() == Lifecycle::State::kLoading) std::_Exit(0);
  });
  const BuildLabels build = ThisBuild();
  LogConfiguration(config, build);

  RealClock clock;
  Metrics metrics(build);
  WriteThreads write_threads;  // outlives every stream, and the engine that names streams to it
  ModelStack stack;            // outlives every call
  OpenStreams streams(&clock, std::min(config.slow_reader_timeout / 4, absl::Seconds(1)));
  RequestPreparer preparer(config.preparer);
  InferenceService service({.lifecycle = &lifecycle,
                            .preparer = &preparer,
                            .streams = &streams,
                            .write_threads = &write_threads,
                            .metrics = &metrics,
                            .clock = &clock},
                           {.stall_limit = config.slow_reader_timeout,
                            .max_pending_bytes = static_cast<size_t>(config.stream_buffer_bytes),
                            .build = build,
                            .configuration = config.effective});
  ASSIGN_OR_RETURN(const auto grpc_server, GrpcServer::Start(config.grpc, &service));
  ASSIGN_OR_RETURN(const auto metrics_server,
                   MetricsServer::Start(config.grpc.host, config.metrics_port, metrics));
  RETURN_IF_ERROR(WritePortFile(config.port_file, grpc_server->port()));
  RETURN_IF_ERROR(WritePortFile(config.metrics_port_file, metrics_server->port()));
  LogInfo("listening: gRPC on {}:{}, metrics on http://{}:{}/metrics", config.grpc.host,
          grpc_server->port(), config.grpc.host, metrics_server->port());

  const absl::Time load_start = clock.Now();
  ASSIGN_OR_RETURN(stack, BuildModelStack(config, &clock, &metrics));
  lifecycle.SetServing(stack.served);
  grpc_server->SetReady(true);
  LogInfo(
      "serving {} ({}, {} tokens of context, {} attention, {:.1f} GiB of KV cache) after {:.1f} s",
      stack.served->name, stack.served->dtype, stack.served->max_model_len,
      PolicyName(stack.served->attention.policy),
      static_cast<double>(stack.kv_store->capacity_bytes()) / 0x1p30,
      absl::ToDoubleSeconds(clock.Now() - load_start));

  signals.WaitForFirst();
  Drain(config, &lifecycle, &streams, grpc_server.get(), stack.engine.get());
  LogInfo("stopped");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const absl::StatusOr<CommandLine> command_line = ParseCommandLine(argc, argv);
  if (!command_line.ok()) {
    fmt::print(stderr, "tokenbutler-server: {}\nRun tokenbutler-server --help for the flags.\n",
               std::string(command_line.status().message()));
    return 2;
  }
  if (!command_line->config) {
    fmt::print("{}", command_line->text);
    return 0;
  }
  KeepLargeAllocations();
  QuietProtobuf();
  signal(SIGPIPE, SIG_IGN);
  InitLogging(command_line->config->log_format, command_line->config->log_level);
  const absl::Status status = Serve(*command_line->config);
  if (status.ok()) return 0;
  LogError("{}", std::string(status.message()));
  return 1;
}

}  // namespace
}  // namespace tokenbutler

int main(int argc, char** argv) { return tokenbutler::Main(argc, argv); }
