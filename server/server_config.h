#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/logging.h"
#include "engine/engine_config.h"
#include "engine/models/overrides.h"
#include "engine/selection/attention_options.h"
#include "server/grpc_server.h"
#include "server/predictor_files.h"
#include "server/request_preparer.h"

namespace tokenbutler {

// A device tier with a memory of its own (KvStore::StagedOptions).
struct StagedFlags {
  int64_t device_capacity_bytes = int64_t{4} << 30;  // for all sequences together
  int selections_kept = 3;                           // room that a sequence takes there
  // A modelled link; 0: none.
  double link_gbps = 0;
  double link_latency_us = 0;
};

// Everything that can be set about a server; each flag of the same name is described by --help.
struct ServerConfig {
  std::string model_path;
  std::string served_model_name;  // empty: the model's own
  GrpcServerOptions grpc;
  std::string port_file;
  int metrics_port = 9464;
  std::string metrics_port_file;

  ModelOverrides overrides;
  PredictorFiles predictor_files;
  std::optional<DType> compute_dtype;        // unset: bf16 where the CPU has it
  std::optional<DType> kv_cache_dtype;       // unset: the compute dtype
  std::optional<int64_t> kv_capacity_bytes;  // unset: from the memory that is free
  int block_size = 128;                      // tokens of a KV block
  // The device tier: unset is `direct`, where it is the host memory itself.
  std::optional<StagedFlags> staged;
  bool kv_prefault = false;
  EngineConfig engine;
  // How requests attend that do not say: the flags as given, and what they amount to. Another model
  // may still refuse that (model_stack.cc).
  AttentionOptions attention_flags;
  AttentionParams attention;
  double recall_probe_rate = 0.01;
  int num_threads = 0;  // of the compute pool; 0: one per CPU this process may use
  RequestPreparer::Options preparer;

  absl::Duration slow_reader_timeout = absl::Seconds(30);
  int64_t stream_buffer_bytes = int64_t{16} << 20;
  absl::Duration shutdown_grace = absl::Seconds(30);
  LogFormat log_format = LogFormat::kText;
  LogLevel log_level = LogLevel::kInfo;

  // Every flag with the value in force, for the log and GetServerInfo.
  std::map<std::string, std::string> effective;
};

// A command line: either a configuration, or (for --help and --version) a text to print.
struct CommandLine {
  std::optional<ServerConfig> config;
  std::string text;
};

// The only place where flags are parsed. INVALID_ARGUMENT naming flag, value and bound.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv);

// "4096", "512MiB", "1.5 GiB", "2GB" -> bytes. INVALID_ARGUMENT naming the text.
absl::StatusOr<int64_t> ParseBytes(const std::string& text);

}  // namespace tokenbutler
