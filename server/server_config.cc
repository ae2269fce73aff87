#include "server/server_config.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "CLI/CLI.hpp"
#include "base/status.h"
#include "server/attention_flags.h"
#include "server/version.h"

namespace tokenbutler {
namespace {

constexpr char kDescription[] =
    "TokenButler Server: serves one language model over gRPC (tokenbutler.v1.InferenceService).\n"
    "Sizes take units (512MiB, 2GB), durations too (500ms, 30s, 2m).";

// Less cuts off clients that do read.
constexpr int64_t kMinStreamBufferBytes = int64_t{64} << 10;

// A flag whose text is parsed by `parse` into `target`; its errors become CLI11's, which puts the
// flag's name in front.
template <typename T, typename Parse>
CLI::Option* AddParsed(CLI::App& app, const char* name, const char* help, T* target, Parse parse,
                       const char* default_text) {
  const auto set = [target, parse, name](const std::string& text) {
    auto parsed = parse(text);
    if (!parsed.ok()) throw CLI::ValidationError(name, std::string(parsed.status().message()));
    *target = *std::move(parsed);
  };
  return app.add_option_function<std::string>(name, set, help)->default_str(default_text);
}

// CLI::Range, which lets NaN through, of what is a number.
CLI::Validator NumberIn(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        double value = 0;
        const bool is_in =
            CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return is_in ? std::string()
                     : fmt::format("Value {} not in range [{} - {}]", text, least, most);
      },
      fmt::format("FLOAT in [{} - {}]", least, most));
}

absl::StatusOr<absl::Duration> ParseDuration(const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
      duration > absl::Hours(24)) {
    return InvalidArgumentError("'{}' must be a duration from 0s to 24h, such as 500ms or 30s",
                                text);
  }
  return duration;
}

absl::StatusOr<absl::Duration> ParseQueueTime(const std::string& text) {
  ASSIGN_OR_RETURN(const absl::Duration duration, ParseDuration(text));
  if (duration > absl::ZeroDuration()) return duration;
  return InvalidArgumentError("'{}' must be more than 0s", text);
}

// Anything shorter cuts off clients that do read, and wakes a thread all the time to check.
absl::StatusOr<absl::Duration> ParseStallLimit(const std::string& text) {
  ASSIGN_OR_RETURN(const absl::Duration duration, ParseDuration(text));
  if (duration >= absl::Milliseconds(100)) return duration;
  return InvalidArgumentError("'{}' must be 100ms at least", text);
}

absl::StatusOr<int64_t> ParseStreamBuffer(const std::string& text) {
  ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes(text));
  if (bytes >= kMinStreamBufferBytes) return bytes;
  return InvalidArgumentError("'{}' must be {} bytes at least", text, kMinStreamBufferBytes);
}

absl::StatusOr<std::optional<int64_t>> ParseKvCapacity(const std::string& text) {
  if (text == "auto") return std::optional<int64_t>();
  ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes(text));
  return std::optional<int64_t>(bytes);
}

absl::StatusOr<std::optional<DType>> ParseDType(const std::string& text) {
  if (text == "auto") return std::optional<DType>();
  if (text == "bf16" || text == "bfloat16") return std::optional<DType>(DType::kBF16);
  if (text == "float32" || text == "f32") return std::optional<DType>(DType::kF32);
  return InvalidArgumentError("'{}' must be auto, bf16 or float32", text);
}

absl::StatusOr<std::optional<DType>> ParseKvCacheDType(const std::string& text) {
  if (text == "auto") return std::optional<DType>();
  if (text == "bf16" || text == "bfloat16") return std::optional<DType>(DType::kBF16);
  if (text == "fp16" || text == "float16") return std::optional<DType>(DType::kF16);
  if (text == "fp32" || text == "float32") return std::optional<DType>(DType::kF32);
  if (text == "int8") return std::optional<DType>(DType::kI8);
  return InvalidArgumentError("'{}' must be auto, bf16, fp16, fp32 or int8", text);
}

absl::StatusOr<std::optional<PredictorKind>> ParseWantedKind(const std::string& text) {
  if (text == "any") return std::optional<PredictorKind>();
  const absl::StatusOr<PredictorKind> kind = ParsePredictorKind(text);
  if (kind.ok() && *kind != PredictorKind::kPca) return std::optional(*kind);
  return InvalidArgumentError("'{}' must be any, lookahead or tokenbutler", text);
}

void AddModelFlags(CLI::App& app, ServerConfig* config) {
  app.add_option("--model", config->model_path,
                 "The model: a .gguf file, or a Hugging Face folder with *.safetensors")
      ->required()
      ->group("Model");
  app.add_option("--served-model-name", config->served_model_name,
                 "Name that requests may give in `model`; default: the model's own")
      ->group("Model");
  app.add_option("--max-model-len", config->overrides.max_model_len,
                 "Longest prompt plus completion in tokens; 0: what the model declares")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str()
      ->group("Model");
  app.add_option("--rope-scaling", config->overrides.rope_scaling,
                 "RoPE scaling instead of the file's, as JSON: {\"rope_type\": \"yarn\", "
                 "\"factor\": 4.0, \"original_max_position_embeddings\": 32768}")
      ->group("Model");
  AddParsed(
      app, "--dtype",
      "Of the weights, and of the KV cache unless --kv-cache-dtype says otherwise: auto, bf16 "
      "or float32; auto: bf16 where the CPU has it",
      &config->compute_dtype, ParseDType, "auto")
      ->group("Model");
  app.add_option("--predictor", config->predictor_files.predictor,
                 "Predictor file (.safetensors) for the attention policy tokenbutler; default: the "
                 "one in --predictor-dir that knows the model's files")
      ->group("Model");
  config->predictor_files.folder = "auto";
  app.add_option("--predictor-dir", config->predictor_files.folder,
                 "Folder in which a predictor is looked for; auto: share/tokenbutler/predictors "
                 "beside the program; none: nowhere")
      ->capture_default_str()
      ->group("Model");
  AddParsed(app, "--predictor-kind",
            "Kind of predictor to take from there: lookahead, tokenbutler, or any: the first of "
            "these that there is",
            &config->predictor_files.kind, ParseWantedKind, "any")
      ->group("Model");
  app.add_flag("--predictor-unchecked", config->predictor_files.unchecked,
               "Use predictor files also for model files of the same architecture that they were "
               "not validated with")
      ->default_str("false")
      ->group("Model");
  app.add_option("--pca-file", config->predictor_files.directions,
                 "Principal directions (.safetensors) for the attention policy pca; default: each "
                 "sequence's own")
      ->group("Model");
}

void AddNetworkFlags(CLI::App& app, ServerConfig* config) {
  constexpr char kGroup[] = "Network";
  app.add_option("--host", config->grpc.host, "Address to listen on, gRPC and metrics")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--port", config->grpc.port, "gRPC port; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--port-file", config->port_file,
                 "Write the gRPC port here once the server listens")
      ->group(kGroup);
  app.add_option("--metrics-port", config->metrics_port, "HTTP port of /metrics; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--metrics-port-file", config->metrics_port_file,
                 "Write the metrics port here once the server listens")
      ->group(kGroup);
  app.add_option_function<int>(
         "--max-receive-mb",
         [config](int mebibytes) { config->grpc.max_receive_bytes = mebibytes << 20; },
         "Largest request in MiB")
      ->check(CLI::Range(1, 1024))
      ->default_str("64")
      ->group(kGroup);
  app.add_flag("--reflection", config->grpc.reflection,
               "Serve gRPC reflection (for grpcurl); --reflection=false turns it off")
      ->default_str("true")
      ->group(kGroup);
  AddParsed(app, "--slow-reader-timeout",
            "End a stream whose client has taken in nothing for that long",
            &config->slow_reader_timeout, ParseStallLimit, "30s")
      ->group(kGroup);
  AddParsed(app, "--stream-buffer", "Bytes that may wait for one slow client",
            &config->stream_buffer_bytes, ParseStreamBuffer, "16MiB")
      ->group(kGroup);
  AddParsed(app, "--shutdown-grace",
            "After SIGTERM, how long running streams may go on before they are cancelled",
            &config->shutdown_grace, ParseDuration, "30s")
      ->group(kGroup);
}

void AddEngineFlags(CLI::App& app, ServerConfig* config) {
  constexpr char kGroup[] = "Engine";
  EngineConfig& engine = config->engine;
  AddParsed(app, "--kv-capacity",
            "Host memory for the KV cache; auto: 90 % of what the cgroup or the machine leaves",
            &config->kv_capacity_bytes, ParseKvCapacity, "auto")
      ->group(kGroup);
  AddParsed(app, "--kv-cache-dtype",
            "Of the KV cache: auto, bf16, fp16, fp32 or int8 (a scale per token and KV head: half "
            "the memory of bf16); auto: as --dtype",
            &config->kv_cache_dtype, ParseKvCacheDType, "auto")
      ->group(kGroup);
  app.add_option("--block-size", config->block_size, "Tokens of a KV block")
      ->check(CLI::Range(16, 4096))
      ->capture_default_str()
      ->group(kGroup);
  app.add_flag("--kv-prefault", config->kv_prefault,
               "Touch the whole KV cache at start: slower start, no page faults later")
      ->default_str("false")
      ->group(kGroup);
  app.add_option("--max-num-seqs", engine.max_num_seqs, "Sequences decoded together")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--prefill-chunk-tokens", engine.prefill_chunk_tokens,
                 "Prompt tokens per step: the longest a running stream waits for a prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--max-waiting-requests", engine.max_waiting_requests,
                 "Requests that may wait; more are refused with RESOURCE_EXHAUSTED")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--max-waiting-tokens", engine.max_waiting_tokens, "Prompt tokens that may wait")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str()
      ->group(kGroup);
  AddParsed(app, "--max-queue-time", "Longest wait in the queue", &engine.max_queue_time,
            ParseQueueTime, "10m")
      ->group(kGroup);
  AddParsed(app, "--priority-step", "How much waiting one step of a request's priority counts like",
            &engine.priority_step, ParseDuration, "30s")
      ->group(kGroup);
  app.add_option("--max-overtakes", engine.max_overtakes,
                 "Later requests that may be started before one that does not fit yet")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--threads", config->num_threads,
                 "Threads of the CPU kernels; 0: one per CPU this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--tokenizer-threads", config->preparer.num_threads,
                 "Threads for chat templates and tokenising")
      ->check(CLI::Range(1, 256))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--max-preparing", config->preparer.max_queued,
                 "Requests that may wait to be tokenised")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(kGroup);
}

// The flags of the device tier, before it is known whether there is one.
struct OffloadFlags {
  bool staged = false;
  StagedFlags options;
  std::vector<CLI::Option*> need_staged;
};

absl::StatusOr<bool> ParseOffload(const std::string& text) {
  if (text == "direct") return false;
  if (text == "staged") return true;
  return InvalidArgumentError("'{}' must be direct or staged", text);
}

void AddOffloadFlags(CLI::App& app, OffloadFlags* flags) {
  constexpr char kGroup[] = "Device tier";
  AddParsed(app, "--offload",
            "direct: attention gathers selected tokens from the KV cache itself; staged: they are "
            "moved to a memory of their own first, as to a device",
            &flags->staged, ParseOffload, "direct")
      ->group(kGroup);
  flags->need_staged = {
      AddParsed(app, "--device-kv-capacity", "Memory for the selected tokens of all sequences",
                &flags->options.device_capacity_bytes, ParseBytes, "4GiB")
          ->group(kGroup),
      app.add_option("--selections-kept", flags->options.selections_kept,
                     "Room that a sequence takes there, in selections (in candidates where it has "
                     "them): what was wanted lately stays")
          ->check(CLI::Range(1, 64))
          ->capture_default_str()
          ->group(kGroup),
      app.add_option("--link-gbps", flags->options.link_gbps,
                     "Model a link of that many 10^9 bytes a second, each way; 0: no model")
          ->check(NumberIn(0, 1e6))
          ->capture_default_str()
          ->group(kGroup),
      app.add_option("--link-latency-us", flags->options.link_latency_us,
                     "Latency of the modelled link in microseconds")
          ->check(NumberIn(0, 1e6))
          ->capture_default_str()
          ->group(kGroup)};
}

absl::StatusOr<std::optional<StagedFlags>> ResolveOffload(const OffloadFlags& flags) {
  if (flags.staged) return std::optional(flags.options);
  for (const CLI::Option* option : flags.need_staged) {
    if (option->count() == 0) continue;
    return InvalidArgumentError("{} is set, which needs --offload staged", option->get_name());
  }
  return std::optional<StagedFlags>();
}

void AddLogFlags(CLI::App& app, ServerConfig* config) {
  AddParsed(app, "--log-format", "text or json", &config->log_format, ParseLogFormat, "text")
      ->group("Log");
  AddParsed(app, "--log-level", "debug, info, warning, error or off", &config->log_level,
            ParseLogLevel, "info")
      ->group("Log");
}

std::map<std::string, std::string> EffectiveFlags(const CLI::App& app) {
  std::map<std::string, std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (name == "--help" || name == "--version") continue;
    flags[name] =
        option->count() > 0 ? CLI::detail::join(option->results(), " ") : option->get_default_str();
  }
  return flags;
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  const auto fault = [&] {
    return InvalidArgumentError(
        "'{}' must be a size from 1 to 2^60 bytes, such as 4096, 512MiB or 2GB", text);
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return fault();
  std::string unit(end, text.data() + text.size());
  std::erase(unit, ' ');
  const std::map<std::string, double> units = {
      {"", 1},       {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12},  {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
      {"K", 0x1p10}, {"M", 0x1p20},   {"G", 0x1p30},   {"T", 0x1p40}};
  const auto found = units.find(unit);
  if (found == units.end()) return fault();
  const double bytes = number * found->second;
  if (!(bytes >= 1 && bytes <= 0x1p60)) return fault();
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv) {
  ServerConfig config;
  CLI::App app(kDescription, "tokenbutler-server");
  app.set_version_flag("--version", std::string("tokenbutler-server ") + kVersion,
                       "Print the version and exit");
  app.get_formatter()->column_width(36);
  AddModelFlags(app, &config);
  AddNetworkFlags(app, &config);
  AddEngineFlags(app, &config);
  AddAttentionFlags(app, &config.attention_flags);
  OffloadFlags offload;
  AddOffloadFlags(app, &offload);
  app.add_option("--recall-probe-rate", config.recall_probe_rate,
                 "Share of sparse decode steps in which a layer's selection is compared with "
                 "exact attention (selection_recall_ratio)")
      ->check(NumberIn(0, 1))
      ->capture_default_str()
      ->group("Engine");
  AddLogFlags(app, &config);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return CommandLine{.config = std::nullopt, .text = app.help()};
  } catch (const CLI::CallForVersion&) {
    return CommandLine{.config = std::nullopt, .text = app.version() + "\n"};
  } catch (const CLI::Error& error) {
    return InvalidArgumentError("{}", error.what());
  }
  ASSIGN_OR_RETURN(config.staged, ResolveOffload(offload));
  ASSIGN_OR_RETURN(config.attention,
                   ResolveAttentionFlags(config.attention_flags, config.staged.has_value()));
  config.effective = EffectiveFlags(app);
  return CommandLine{.config = std::move(config), .text = ""};
}

}  // namespace tokenbutler
