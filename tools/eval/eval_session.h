#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/compute_pool.h"
#include "base/status.h"
#include "tools/scoring/checkpoint.h"
#include "tools/scoring/measured_model.h"
#include "tools/scoring/prefill_cache.h"
#include "tools/scoring/prompt_forks.h"
#include "tools/scoring/report.h"
#include "tools/scoring/settings.h"
#include "tools/scoring/text_jobs.h"

namespace tokenbutler {

// A model and the settings that are compared on it.
struct EvalOptions {
  std::string model = {};  // a .gguf file or a Hugging Face folder
  std::string dtype = {};
  std::string kv_dtype = {};  // of the KV cache, a DTypeName; "": the compute dtype
  int block_size = 128;       // tokens of a KV block: the least that a local window can be
  // choice.token_budgets is not read: budgets is. choice.predictor: "": the one that is found.
  SettingOptions choice = {.settings = AllSettings(), .sink_tokens = 32, .local_window = 128};
  std::vector<std::string> budgets = {"1/16"};  // tokens, or shares of context_len
  bool with_dense = true;                       // whether dense is one of the settings
  int context_len = 12288;                      // most tokens of a sequence
  int forked_tokens = 0;    // most that follow what is held; the rest of a block is added
  int num_completions = 1;  // most of one continuation
  int batch = 16;           // continuations that run together
  int prefill_chunk_tokens = 512;
  std::string prefill_cache = {};  // folder that keeps prefilled rows for the next run; "": none
  double probe_rate = 1;           // StepRunnerOptions::recall_probe_rate
  // Sequences have a device tier with memory of their own, so that what would have to be moved to a
  // GPU is counted. Makes no difference to what they compute.
  bool has_device_tier = true;
};

// A model at work with everything that its settings need.
class EvalSession {
 public:
  // INVALID_ARGUMENT naming the option; RESOURCE_EXHAUSTED when there is too little memory.
  static absl::StatusOr<std::unique_ptr<EvalSession>> Create(const EvalOptions& options,
                                                             ComputePool& pool);

  MeasuredModel& model() { return *model_; }
  PromptForks& forks() { return *forks_; }
  const EvalOptions& options() const { return options_; }
  // Each setting at each budget; without those that the model cannot be run with.
  const std::vector<TextJob>& jobs() const { return jobs_; }

  // Holds a prompt for continuations with the attentions of `jobs`: from the cache, or prefilled,
  // which is done anew for policies that have to watch.
  absl::Status Hold(absl::Span<const int32_t> prompt, absl::Span<const TextJob> jobs,
                    const std::function<void(int done)>& progress);

  // On which every row of results depends, for a Checkpoint: the model and its digest, dtypes,
  // block size, sink and window.
  Checkpoint::Json Facts(const std::string& evaluation) const;
  // A report with these facts and those of the machine and the program.
  Report NewReport(const std::string& evaluation, const Checkpoint::Json& facts) const;

 private:
  explicit EvalSession(const EvalOptions& options) : options_(options) {}

  const EvalOptions options_;
  std::vector<TextJob> jobs_;
  std::vector<std::string> refused_;
  std::unique_ptr<MeasuredModel> model_;
  std::string model_sha256_;  // ModelDigest
  std::unique_ptr<PrefillCache> cache_;
  std::unique_ptr<PromptForks> forks_;
};

}  // namespace tokenbutler
