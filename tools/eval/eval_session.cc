#include "tools/eval/eval_session.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_join.h"
#include "engine/predictor/predictor_file.h"
#include "engine/selection/policies.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

std::string ModelName(const EvalOptions& o) {
  const std::filesystem::path path(o.model);
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// The largest `count` of the values together.
int64_t SumOfLargest(std::vector<int64_t> values, int count) {
  std::sort(values.begin(), values.end(), std::greater<>());
  values.resize(std::min(values.size(), static_cast<size_t>(count)));
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// What is held, what watched it, and what runs together: the jobs, or dense attention, which may
// not be one of them.
int NumBlocks(const std::vector<TextJob>& jobs, const EvalOptions& o,
              const SelectionResources& resources) {
  const KvLayout& layout = resources.layout;
  const int whole = layout.blocks_for(o.context_len);
  const int64_t own = int64_t{o.num_completions} * (layout.blocks_for(o.forked_tokens) + 1);
  const int64_t block_bytes = static_cast<int64_t>(layout.block_bytes());
  int64_t observing = 0;
  std::vector<int64_t> running = {own};
  for (const TextJob& job : jobs) {
    const PolicyMemory memory = PolicyMemoryFor(job.params, resources, o.context_len);
    const int64_t policy = StateLayoutFor(job.params, resources).blocks_for(whole) +
                           (memory.own + memory.shared) / block_bytes + 1;
    if (LearnsFromPrefill(job.params.policy)) observing += policy;
    running.push_back(own + o.num_completions * policy);
  }
  return static_cast<int>(whole + observing + SumOfLargest(std::move(running), o.batch));
}

int64_t DeviceBytes(const std::vector<TextJob>& jobs, const EvalOptions& o,
                    const KvLayout& layout) {
  std::vector<int64_t> bytes;
  for (const TextJob& job : jobs) {
    const AttentionParams p = FittedParams(job.params, o.context_len, layout.block_size);
    bytes.push_back(o.num_completions *
                    StagedBytes(layout, {.token_budget = p.token_budget,
                                         .candidates = p.candidates,
                                         .sink_tokens = p.sink_tokens,
                                         .local_window = p.local_window,
                                         .prediction_interval = p.prediction_interval}));
  }
  const int64_t sum = SumOfLargest(std::move(bytes), o.batch);
  // The tier may align blocks.
  return sum + sum / 64 + static_cast<int64_t>(layout.block_bytes());
}

absl::StatusOr<std::vector<TextJob>> JobsOf(const EvalOptions& o) {
  SettingOptions choice = o.choice;
  choice.token_budgets.clear();
  for (const std::string& text : o.budgets) {
    ASSIGN_OR_RETURN(const int budget, ParseBudget(text, o.context_len));
    choice.token_budgets.push_back(budget);
  }
  ASSIGN_OR_RETURN(std::vector<TextJob> all, TextJobsOf(choice, o.context_len, o.with_dense));
  std::vector<TextJob> jobs;
  for (TextJob& job : all) {
    if (!job.params.sparse()) job.params.token_budget = 0;  // one row, whatever the budgets
    const bool is_new = std::none_of(jobs.begin(), jobs.end(),
                                     [&](const TextJob& j) { return j.Key() == job.Key(); });
    if (is_new) jobs.push_back(std::move(job));
  }
  return jobs;
}

MeasuredModel::Options SetupOf(const EvalOptions& o, const std::vector<TextJob>& jobs) {
  MeasuredModel::Options setup;
  setup.model = o.model;
  setup.dtype = o.dtype;
  setup.kv_dtype = o.kv_dtype;
  setup.block_size = o.block_size;
  setup.context_len = o.context_len;
  setup.num_blocks = [&jobs, o](const SelectionResources& r) { return NumBlocks(jobs, o, r); };
  setup.needs_tokenizer = true;
  const bool wants_predictor = std::any_of(jobs.begin(), jobs.end(), [](const TextJob& job) {
    return job.params.policy == AttentionPolicy::kTokenButler;
  });
  setup.predictor = wants_predictor && o.choice.predictor.empty() ? "auto" : o.choice.predictor;
  setup.runner.max_num_seqs = o.batch * o.num_completions;
  setup.runner.prefill_chunk_tokens = o.prefill_chunk_tokens;
  setup.runner.recall_probe_rate = o.probe_rate;
  const bool any_sparse =
      std::any_of(jobs.begin(), jobs.end(), [](const TextJob& job) { return job.params.sparse(); });
  if (o.has_device_tier && any_sparse) {
    setup.device_bytes = [&jobs, o](const KvLayout& layout) {
      return DeviceBytes(jobs, o, layout);
    };
  }
  return setup;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EvalSession>> EvalSession::Create(const EvalOptions& options,
                                                                 ComputePool& pool) {
  if (options.forked_tokens < 1 || options.forked_tokens >= options.context_len) {
    return InvalidArgumentError("{} tokens are to follow the held prompt, must be in [1, {})",
                                options.forked_tokens, options.context_len);
  }
  auto session = std::unique_ptr<EvalSession>(new EvalSession(options));
  ASSIGN_OR_RETURN(session->jobs_, JobsOf(options));
  ASSIGN_OR_RETURN(session->model_, MeasuredModel::Create(SetupOf(options, session->jobs_), pool));
  if (const std::string& path = session->model_->predictor_path(); !path.empty()) {
    ASSIGN_OR_RETURN(const std::string name, NameOfFile(path));
    for (TextJob& job : session->jobs_) {
      if (job.params.policy == AttentionPolicy::kTokenButler) job.predictor = name;
    }
  }
  session->refused_ = RemoveRefused(session->model_->runner(), &session->jobs_);
  if (session->jobs_.empty() && !session->refused_.empty()) {
    return InvalidArgumentError("none of the settings can be run: {}",
                                absl::StrJoin(session->refused_, "; "));
  }
  ASSIGN_OR_RETURN(session->model_sha256_, ModelDigest(options.model));
  session->cache_ = std::make_unique<PrefillCache>(
      options.prefill_cache,
      fmt::format("{}-{}", ModelName(options), session->model_sha256_.substr(0, 16)),
      *session->model_);
  ASSIGN_OR_RETURN(session->forks_,
                   PromptForks::Create(*session->model_,
                                       {.context_len = options.context_len,
                                        .max_num_seqs = options.batch * options.num_completions,
                                        .prefill_chunk_tokens = options.prefill_chunk_tokens}));
  return session;
}

absl::Status EvalSession::Hold(absl::Span<const int32_t> prompt, absl::Span<const TextJob> jobs,
                               const std::function<void(int done)>& progress) {
  std::vector<AttentionParams> watching;
  for (const TextJob& job : jobs) {
    if (LearnsFromPrefill(job.params.policy)) watching.push_back(job.params);
  }
  // They want the prompt's queries, which no file has.
  const std::shared_ptr<const PromptRows> rows = watching.empty() ? cache_->Load(prompt) : nullptr;
  RETURN_IF_ERROR(forks_->Hold(prompt, std::move(watching), rows, progress));
  if (rows != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const BlockTable blocks, forks_->Blocks());
  return cache_->Store(prompt, blocks);
}

Checkpoint::Json EvalSession::Facts(const std::string& evaluation) const {
  return {{"evaluation", evaluation},
          {"model", ModelName(options_)},
          {"model_sha256", model_sha256_},
          {"dtype", model_->dtypes()},
          {"context_len", options_.context_len},
          {"block_size", options_.block_size},
          {"sink_tokens", options_.choice.sink_tokens},
          {"local_window", options_.choice.local_window}};
}

Report EvalSession::NewReport(const std::string& evaluation, const Checkpoint::Json& facts) const {
  Report report(evaluation, model_->pool());
  for (const auto& [fact, value] : facts.items()) report.SetFact(fact, value);
  report.SetFact("rope_scaling", model_->rope_scaling());
  report.SetFact("version", TOKENBUTLER_VERSION);
  report.SetFact("probe_rate", options_.probe_rate);
  report.SetFact("has_device_tier", options_.has_device_tier);
  if (!refused_.empty()) report.SetFact("left_out", refused_);
  return report;
}

}  // namespace tokenbutler
