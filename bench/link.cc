#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/benchmarks.h"
#include "engine/selection/policies.h"
#include "fmt/format.h"
#include "tools/scoring/checkpoint.h"
#include "tools/scoring/divergence.h"
#include "tools/scoring/measured_model.h"
#include "tools/scoring/prefill_cache.h"
#include "tools/scoring/text_document.h"
#include "tools/scoring/text_jobs.h"

namespace tokenbutler {
namespace {

using Json = Report::Json;

constexpr int kUncountedSteps = 16;  // the longest interval

// One sequence at a time beside the prompt's.
int NumBlocks(const std::vector<TextJob>& jobs, const LinkOptions& o,
              const SelectionResources& resources) {
  const KvLayout& layout = resources.layout;
  const int whole = layout.blocks_for(o.context_len);
  const int own = layout.blocks_for(o.decoded_tokens) + 1;
  int state = 0;
  for (const TextJob& job : jobs) {
    state = std::max(state, StateLayoutFor(job.params, resources).blocks_for(whole + own));
  }
  return whole + 2 * own + state;
}

// As its SequenceAttention will ask for.
ResidentOptions ResidentOptionsOf(const TextJob& job, const LinkOptions& o) {
  const AttentionParams& p = job.params;
  return {.token_budget = p.token_budget,
          .candidates = p.candidates,
          .sink_tokens = p.sink_tokens,
          .local_window = p.local_window,
          .prediction_interval = p.prediction_interval,
          .selections_kept = o.selections_kept};
}

int64_t DeviceBytes(const std::vector<TextJob>& jobs, const LinkOptions& o,
                    const KvLayout& layout) {
  int64_t bytes = 0;
  for (const TextJob& job : jobs) {
    bytes = std::max(bytes, StagedBytes(layout, ResidentOptionsOf(job, o)));
  }
  // The tier may align blocks.
  return bytes + bytes / 64 + static_cast<int64_t>(layout.block_bytes());
}

OffloadCounters Difference(OffloadCounters a, const OffloadCounters& b) {
  a.host_to_device_bytes -= b.host_to_device_bytes;
  a.prefetched_bytes -= b.prefetched_bytes;
  a.lookups -= b.lookups;
  a.hits -= b.hits;
  a.deferred -= b.deferred;
  return a;
}

class LinkBenchmark {
 public:
  LinkBenchmark(const LinkOptions& options, MeasuredModel& model, const PrefillCache& cache)
      : options_(options), model_(model), cache_(cache) {}

  // Prefills a text and decodes its end densely: what Run compares with.
  absl::Status Open(const TextDocument& document) {
    references_.clear();
    const int prefix = options_.context_len - options_.decoded_tokens;
    const absl::Span<const int32_t> prompt = absl::MakeConstSpan(document.tokens).first(prefix);
    trunk_ = nullptr;
    ASSIGN_OR_RETURN(trunk_, MeasuredSequence::Create(model_, {}, prefix));
    if (const auto rows = cache_.Load(prompt); rows != nullptr) {
      trunk_->CopyIn(*rows);
    } else {
      RETURN_IF_ERROR(trunk_->Prefill(prompt, options_.prefill_chunk_tokens, [&](int done) {
        fmt::print(stderr, "\rlink: {}: prefill {}/{} ", document.name, done, prefix);
      }));
      fmt::print(stderr, "\n");
      RETURN_IF_ERROR(cache_.Store(prompt, trunk_->table()));
    }
    ASSIGN_OR_RETURN(const auto dense,
                     MeasuredSequence::Branch(model_, {}, *trunk_, prefix, options_.context_len));
    for (int at = prefix; at < options_.context_len; ++at) {
      RETURN_IF_ERROR(dense->Decode(document.tokens[at]));
      references_.emplace_back(model_.runner().decode_logits(0));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Json> Run(const TextDocument& document, const TextJob& job) {
    const int prefix = options_.context_len - options_.decoded_tokens;
    ASSIGN_OR_RETURN(const auto sequence, MeasuredSequence::Branch(model_, job.params, *trunk_,
                                                                   prefix, options_.context_len));
    OffloadCounters before;
    double kl = 0;
    std::vector<StepTransfers> steps;
    for (int i = 0; i < options_.decoded_tokens; ++i) {
      if (i == kUncountedSteps) before = sequence->stats().offload;
      RETURN_IF_ERROR(sequence->Decode(document.tokens[prefix + i]));
      kl += references_[i].KlDivergence(model_.runner().decode_logits(0));
      if (i < kUncountedSteps) continue;
      const absl::Span<const LayerTransfer> transfers = sequence->transfers();
      steps.emplace_back(transfers.begin(), transfers.end());
    }
    return RowOf(document, job, Difference(sequence->stats().offload, before), steps,
                 kl / options_.decoded_tokens);
  }

 private:
  Json RowOf(const TextDocument& document, const TextJob& job, const OffloadCounters& counted,
             absl::Span<const StepTransfers> steps, double kl) const {
    const KvLayout& layout = model_.layout();
    const LinkModel::Step modelled =
        options_.link.StepOf({.steps = steps,
                              .num_layers = layout.num_layers,
                              .token_bytes = static_cast<double>(layout.token_row_bytes()),
                              .lookups = counted.lookups,
                              .defers = job.params.misses == MissRule::kDeferred});
    const double lookups = static_cast<double>(counted.lookups);
    Json row = job.KeyFor(document);
    row["hit_rate"] = static_cast<double>(counted.hits) / lookups;
    row["deferred"] = static_cast<double>(counted.deferred) / lookups;
    row["kb_per_token"] =
        static_cast<double>(counted.host_to_device_bytes) / static_cast<double>(steps.size()) / 1e3;
    row["sent_ahead"] = counted.host_to_device_bytes == 0
                            ? 0.0
                            : static_cast<double>(counted.prefetched_bytes) /
                                  static_cast<double>(counted.host_to_device_bytes);
    row["modelled_mb"] = modelled.mb;
    row["modelled_link_ms"] = modelled.link_ms;
    row["modelled_stall_ms"] = modelled.stall_ms;
    row["modelled_stall_share"] = modelled.stall_ms / options_.link.step_ms;
    row["modelled_device_gb"] =
        static_cast<double>(options_.link.DeviceBytes(ResidentOptionsOf(job, options_))) / 1e9;
    row["mean_kl"] = kl;
    return row;
  }

  const LinkOptions& options_;
  MeasuredModel& model_;
  const PrefillCache& cache_;
  std::unique_ptr<MeasuredSequence> trunk_;
  std::vector<ReferenceDistribution> references_;  // of each decoded position
};

// Means over the texts.
Json Summary(const Checkpoint& checkpoint, const TextJob& job) {
  Json summary = {{"setting", job.label},
                  {"token_budget", job.params.token_budget},
                  {"interval", job.params.prediction_interval},
                  {"candidates", job.params.candidates},
                  {"misses", MissRuleName(job.params.misses)}};
  const std::vector<Json> rows = job.RowsIn(checkpoint);
  for (const Json& row : rows) {
    for (const auto& [name, value] : row.items()) {
      if (value.is_number_float()) summary[name] = summary.value(name, 0.0) + value.get<double>();
    }
  }
  for (auto& [name, value] : summary.items()) {
    if (value.is_number_float()) {
      value = value.get<double>() / static_cast<double>(rows.size());
    }
  }
  summary["documents"] = rows.size();
  return summary;
}

Report NewReport(const LinkOptions& o, const Json& facts, ComputePool& pool) {
  const LinkModel& link = o.link;
  Report report("link", pool);
  for (const auto& [fact, value] : facts.items()) report.SetFact(fact, value);
  report.SetFact(
      "modelled",
      fmt::format("a step of {} ms, a link of {} GB/s and {} us; {} layers x {} KV heads x "
                  "{} channels of {} bytes, budget {}: the same share of each layer's tokens "
                  "travels at the same points of the step as in the model that was run",
                  link.step_ms, link.gbps, link.latency_us, link.num_layers, link.num_kv_heads,
                  link.head_dim, link.element_bytes, link.token_budget));
  return report;
}

}  // namespace

absl::StatusOr<Report> RunLink(const LinkOptions& o, ComputePool& pool) {
  if (o.decoded_tokens <= kUncountedSteps || o.decoded_tokens >= o.context_len) {
    return InvalidArgumentError("decoded_tokens is {}, must be in ({}, {}), context_len",
                                o.decoded_tokens, kUncountedSteps, o.context_len);
  }
  ASSIGN_OR_RETURN(std::vector<TextJob> jobs, TextJobsOf(o.choice, o.context_len));
  MeasuredModel::Options setup;
  setup.model = o.model;
  setup.dtype = o.dtype;
  setup.kv_dtype = o.kv_dtype;
  setup.context_len = o.context_len;
  setup.num_blocks = [&](const SelectionResources& r) { return NumBlocks(jobs, o, r); };
  setup.needs_tokenizer = true;
  setup.device_bytes = [&](const KvLayout& layout) { return DeviceBytes(jobs, o, layout); };
  setup.selections_kept = o.selections_kept;
  setup.predictor = o.choice.predictor;
  setup.runner.max_num_seqs = 1;
  setup.runner.prefill_chunk_tokens = o.prefill_chunk_tokens;
  ASSIGN_OR_RETURN(const auto model, MeasuredModel::Create(setup, pool));
  const std::vector<std::string> refused = RemoveRefused(model->runner(), &jobs);
  const std::string name = std::filesystem::path(o.model).filename().string();
  const Json facts = {{"benchmark", "link"},
                      {"model", name},
                      {"dtype", model->dtypes()},
                      {"context_len", o.context_len},
                      {"decoded_tokens", o.decoded_tokens},
                      {"sink_tokens", o.choice.sink_tokens},
                      {"local_window", o.choice.local_window},
                      {"selections_kept", o.selections_kept},
                      {"link_gbps", o.link.gbps},
                      {"link_latency_us", o.link.latency_us},
                      {"step_ms", o.link.step_ms}};
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(o.choice.resume, facts));
  const PrefillCache cache(o.prefill_cache, name, *model);
  LinkBenchmark benchmark(o, *model, cache);
  const size_t num_texts = std::min(o.texts.size(), static_cast<size_t>(o.max_texts));
  for (size_t d = 0; d < num_texts; ++d) {
    ASSIGN_OR_RETURN(const TextDocument document,
                     ReadTextDocument(o.texts[d], o.context_len, *model));
    bool is_open = false;
    for (const TextJob& job : jobs) {
      if (checkpoint.Find(job.KeyFor(document)) != nullptr) continue;
      if (!is_open) RETURN_IF_ERROR(benchmark.Open(document));
      is_open = true;
      fmt::print(stderr, "link: text {}/{}: {}, {}\n", d + 1, num_texts, document.name, job.label);
      ASSIGN_OR_RETURN(Json row, benchmark.Run(document, job));
      RETURN_IF_ERROR(checkpoint.Add(std::move(row)));
    }
  }
  Report report = NewReport(o, facts, pool);
  if (!refused.empty()) report.SetFact("left_out", refused);
  for (const TextJob& job : jobs) report.AddRow(Summary(checkpoint, job));
  return report;
}

}  // namespace tokenbutler
