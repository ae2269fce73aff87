#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/compute_pool.h"
#include "base/metrics.h"
#include "base/status.h"
#include "engine/chat_template/chat_template.h"
#include "engine/engine.h"
#include "engine/step_runner.h"
#include "engine/tokenizer/tokenizer.h"
#include "offload/block_pool.h"
#include "offload/kv_store.h"
#include "server/served_model.h"
#include "server/server_config.h"

namespace tokenbutler {

// Everything of a server that depends on the model, in the order of construction: each part uses
// those before it only.
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

// Bytes of this process that are in memory now.
int64_t ResidentBytes();

// Where the memory is read from that the KV cache may take when no flag says so; tests have others.
struct MemoryReadings {
  std::function<int64_t()> limit_bytes = MemoryLimitBytes;
  std::function<int64_t()> resident_bytes = ResidentBytes;
};

// Loads the model, and the files beside it, and puts the parts together. `clock` and `metrics` must
// outlive the result. Errors of the loader, of the tokenizer, of LoadPredictorFiles, of the KV
// store (starting with the flags) and of the engine.
absl::StatusOr<ModelStack> BuildModelStack(const ServerConfig& config, Clock* clock,
                                           Metrics* metrics, const MemoryReadings& memory = {});

}  // namespace tokenbutler
