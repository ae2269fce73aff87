#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_model.h"
#include "bench/benchmarks.h"
#include "bench/checkpoint.h"
#include "bench/divergence.h"
#include "bench/prefill_cache.h"
#include "bench/text_document.h"
#include "engine/selection/policies.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

using Json = Report::Json;

// Policies that choose by the prompt's queries; the others only need its keys, and share one
// prefill.
bool NeedsOwnPrefill(AttentionPolicy policy) {
  return policy == AttentionPolicy::kSnapKv || policy == AttentionPolicy::kH2o;
}

// Policies that take minutes for a text.
bool IsSlow(AttentionPolicy policy) {
  return NeedsOwnPrefill(policy) || policy == AttentionPolicy::kXkv;
}

// One setting at one budget: a row of the table.
struct Job {
  std::string label;
  AttentionParams params;

  Json KeyFor(const TextDocument& document) const {
    return {{"document", document.name},
            {"fingerprint", document.fingerprint},
            {"setting", label},
            {"token_budget", params.token_budget}};
  }
};

absl::StatusOr<std::vector<Job>> JobsOf(const QualityOptions& o) {
  ASSIGN_OR_RETURN(const std::vector<Setting> settings,
                   ParseSettings(o.choice.settings, o.choice.sweep));
  std::vector<Job> jobs;
  for (const int token_budget : o.choice.token_budgets) {
    for (const Setting& setting : settings) {
      if (!setting.params.sparse()) continue;  // what the others are compared with
      jobs.push_back({setting.label, setting.At({.context_len = o.context_len,
                                                 .token_budget = token_budget,
                                                 .sink_tokens = o.choice.sink_tokens,
                                                 .local_window = o.choice.local_window})});
    }
  }
  return jobs;
}

int NumBlocks(const std::vector<Job>& jobs, const QualityOptions& o,
              const SelectionResources& resources) {
  const KvLayout& layout = resources.layout;
  const int whole = layout.blocks_for(o.context_len);
  const int own = layout.blocks_for(o.scored_tokens) + 1;
  int num_blocks = whole + own;
  for (const Job& job : jobs) {
    num_blocks += NeedsOwnPrefill(job.params.policy) ? whole : own;
    num_blocks += StateLayoutFor(job.params, resources).blocks_for(whole);
  }
  return num_blocks;
}

// Sums over the scored positions.
struct Score {
  double kl = 0, nll = 0;
  int same_top = 0;
};

class DocumentScorer {
 public:
  DocumentScorer(const QualityOptions& options, BenchModel& model, const PrefillCache& cache)
      : options_(options), model_(model), cache_(cache) {}

  // A row for each job.
  absl::StatusOr<std::vector<Json>> Run(const TextDocument& document,
                                        const std::vector<Job>& jobs) {
    RETURN_IF_ERROR(Prefill(document, jobs));
    std::vector<Score> scores(jobs.size());
    double dense_nll = 0;
    const int first = options_.context_len - options_.scored_tokens;
    for (int position = first; position < options_.context_len; ++position) {
      fmt::print(stderr, "\rquality: {}: position {}/{} ", document.name, position - first + 1,
                 options_.scored_tokens);
      RETURN_IF_ERROR(Step(document.tokens, position, &dense_nll, &scores));
    }
    fmt::print(stderr, "\n");
    std::vector<Json> rows;
    for (size_t j = 0; j < jobs.size(); ++j) {
      rows.push_back(RowOf(document, jobs[j], scores[j], sequences_[j]->stats(), dense_nll));
    }
    sequences_.clear();
    dense_ = nullptr;
    return rows;
  }

 private:
  // Everything before the scored tokens: once for all jobs that only need the rows.
  absl::Status Prefill(const TextDocument& document, const std::vector<Job>& jobs) {
    const int end = options_.context_len, prefix = end - options_.scored_tokens;
    const absl::Span<const int32_t> prompt = absl::MakeConstSpan(document.tokens).first(prefix);
    sequences_.clear();
    sequences_.resize(jobs.size());
    const BenchSequence* trunk = nullptr;
    for (size_t j = 0; j < jobs.size(); ++j) {
      if (!NeedsOwnPrefill(jobs[j].params.policy)) continue;
      ASSIGN_OR_RETURN(sequences_[j], BenchSequence::Create(model_, jobs[j].params, end));
      RETURN_IF_ERROR(RunPrompt(document, prompt, jobs[j].label, sequences_[j].get()));
      trunk = sequences_[j].get();  // its rows are the dense ones
    }
    std::unique_ptr<BenchSequence> own_trunk;
    if (trunk == nullptr) {
      ASSIGN_OR_RETURN(own_trunk, BenchSequence::Create(model_, {}, prefix));
      if (!cache_.Load(prompt, own_trunk.get())) {
        RETURN_IF_ERROR(RunPrompt(document, prompt, "dense", own_trunk.get()));
        RETURN_IF_ERROR(cache_.Store(prompt, *own_trunk));
      }
      trunk = own_trunk.get();
    }
    ASSIGN_OR_RETURN(dense_, BenchSequence::Branch(model_, {}, *trunk, prefix, end));
    for (size_t j = 0; j < jobs.size(); ++j) {
      if (sequences_[j] != nullptr) continue;
      ASSIGN_OR_RETURN(sequences_[j],
                       BenchSequence::Branch(model_, jobs[j].params, *trunk, prefix, end));
    }
    return absl::OkStatus();
  }

  absl::Status RunPrompt(const TextDocument& document, absl::Span<const int32_t> prompt,
                         const std::string& label, BenchSequence* sequence) {
    RETURN_IF_ERROR(sequence->Prefill(prompt, options_.prefill_chunk_tokens, [&](int done) {
      fmt::print(stderr, "\rquality: {}: prefill for {} {}/{} ", document.name, label, done,
                 prompt.size());
    }));
    fmt::print(stderr, "\n");
    return absl::OkStatus();
  }

  // Decodes the token at `position` in all sequences together and compares their predictions of
  // the next one: the weights are read once for all.
  absl::Status Step(const std::vector<int32_t>& tokens, int position, double* dense_nll,
                    std::vector<Score>* scores) {
    StepPlan plan;
    plan.decode.push_back(dense_->DecodeItem(&tokens[position]));
    for (const auto& sequence : sequences_) {
      plan.decode.push_back(sequence->DecodeItem(&tokens[position]));
    }
    RETURN_IF_ERROR(model_.runner().Run(plan));
    ++dense_->table().num_tokens;
    for (const auto& sequence : sequences_) ++sequence->table().num_tokens;

    const absl::Span<const float> dense = model_.runner().decode_logits(0);
    const ReferenceDistribution reference(dense);
    *dense_nll += NegativeLogLikelihood(dense, tokens[position + 1]);
    model_.pool().ParallelFor(static_cast<int>(scores->size()), [&](int j) {
      const absl::Span<const float> logits = model_.runner().decode_logits(j + 1);
      Score& score = (*scores)[j];
      score.kl += reference.KlDivergence(logits);
      score.same_top += TopToken(logits) == reference.top_token();
      score.nll += NegativeLogLikelihood(logits, tokens[position + 1]);
    });
    return absl::OkStatus();
  }

  Json RowOf(const TextDocument& document, const Job& job, const Score& score,
             const AttentionStats& stats, double dense_nll) const {
    const double count = options_.scored_tokens;
    Json row = job.KeyFor(document);
    row["mean_kl"] = score.kl / count;
    row["same_top"] = score.same_top / count;
    row["nll"] = score.nll / count;
    row["dense_nll"] = dense_nll / count;
    row["attended_tokens"] =
        static_cast<double>(stats.attended_tokens) / static_cast<double>(stats.attended_lists);
    row["mass_recall"] = stats.recall_probes == 0
                             ? Json()
                             : Json(stats.recall_sum / static_cast<double>(stats.recall_probes));
    row["own_prefill"] = NeedsOwnPrefill(job.params.policy);
    return row;
  }

  const QualityOptions& options_;
  BenchModel& model_;
  const PrefillCache& cache_;
  std::unique_ptr<BenchSequence> dense_;
  std::vector<std::unique_ptr<BenchSequence>> sequences_;  // one per job
};

// The values of one column in the rows of a job.
std::vector<double> Column(const std::vector<Json>& rows, const std::string& name) {
  std::vector<double> values;
  for (const Json& row : rows) {
    if (!row[name].is_null()) values.push_back(row[name].get<double>());
  }
  return values;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::vector<Json> RowsOf(const Checkpoint& checkpoint, const Job& job) {
  std::vector<Json> rows;
  for (const Json& row : checkpoint.rows()) {
    if (row["setting"] == job.label && row["token_budget"] == job.params.token_budget) {
      rows.push_back(row);
    }
  }
  return rows;
}

// Mean KL divergence over that of `exact` at the same budget on the same documents; null without.
Json OverExact(const Checkpoint& checkpoint, const std::vector<Json>& rows) {
  double sum = 0, exact_sum = 0;
  for (const Json& row : rows) {
    const Json* exact = checkpoint.Find({{"document", row["document"]},
                                         {"fingerprint", row["fingerprint"]},
                                         {"setting", "exact"},
                                         {"token_budget", row["token_budget"]}});
    if (exact == nullptr) return Json();
    sum += row["mean_kl"].get<double>();
    exact_sum += (*exact)["mean_kl"].get<double>();
  }
  return exact_sum > 0 ? Json(sum / exact_sum) : Json();
}

Json Summary(const Checkpoint& checkpoint, const Job& job, const std::vector<Json>& rows) {
  const MeanInterval kl = BootstrapMean(Column(rows, "mean_kl"));
  const std::vector<double> recall = Column(rows, "mass_recall");
  return {
      {"setting", job.label},
      {"token_budget", job.params.token_budget},
      {"interval", job.params.prediction_interval},
      {"candidates", job.params.candidates},
      {"scan_fraction", job.params.scan_fraction},
      {"mean_kl", kl.mean},
      {"kl_low", kl.low},
      {"kl_high", kl.high},
      {"over_exact", OverExact(checkpoint, rows)},
      {"same_top", Mean(Column(rows, "same_top"))},
      {"perplexity_ratio", std::exp(Mean(Column(rows, "nll")) - Mean(Column(rows, "dense_nll")))},
      {"attended_tokens", Mean(Column(rows, "attended_tokens"))},
      {"mass_recall", recall.empty() ? Json() : Json(Mean(recall))},
      {"documents", rows.size()},
      {"own_prefill", rows[0]["own_prefill"]}};
}

absl::Status CheckOptions(const QualityOptions& o) {
  if (o.texts.empty()) return InvalidArgumentError("there are no texts");
  if (o.scored_tokens >= o.context_len) {
    return InvalidArgumentError("scored_tokens is {}, must be less than context_len, {}",
                                o.scored_tokens, o.context_len);
  }
  return absl::OkStatus();
}

// Without the jobs that the model cannot be run with.
std::vector<std::string> RemoveRefused(StepRunner& runner, std::vector<Job>* jobs) {
  std::vector<std::string> refused;
  std::erase_if(*jobs, [&](const Job& job) {
    const absl::Status status = runner.CheckAttention(job.params);
    if (status.ok()) return false;
    refused.push_back(fmt::format("{}: {}", job.label, std::string(status.message())));
    fmt::print(stderr, "quality: left out: {}\n", refused.back());
    return true;
  });
  return refused;
}

}  // namespace

absl::StatusOr<Report> RunQuality(const QualityOptions& o, ComputePool& pool) {
  RETURN_IF_ERROR(CheckOptions(o));
  ASSIGN_OR_RETURN(std::vector<Job> jobs, JobsOf(o));
  BenchModel::Options setup;
  setup.model = o.model;
  setup.dtype = o.dtype;
  setup.context_len = o.context_len;
  setup.num_blocks = [&](const SelectionResources& r) { return NumBlocks(jobs, o, r); };
  setup.needs_tokenizer = true;
  setup.predictor = o.choice.predictor;
  setup.runner.max_num_seqs = static_cast<int>(jobs.size()) + 1;
  setup.runner.prefill_chunk_tokens = o.prefill_chunk_tokens;
  setup.runner.recall_probe_rate = 1;
  ASSIGN_OR_RETURN(const auto model, BenchModel::Create(setup, pool));
  const std::vector<std::string> refused = RemoveRefused(model->runner(), &jobs);
  const std::string name = std::filesystem::path(o.model).filename().string();
  const Json facts = {{"benchmark", "quality"},
                      {"model", name},
                      {"dtype", DTypeName(model->runner().compute_dtype())},
                      {"context_len", o.context_len},
                      {"scored_tokens", o.scored_tokens},
                      {"sink_tokens", o.choice.sink_tokens},
                      {"local_window", o.choice.local_window}};
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(o.choice.resume, facts));
  const PrefillCache cache(o.prefill_cache, name, *model);
  DocumentScorer scorer(o, *model, cache);
  for (size_t d = 0; d < o.texts.size(); ++d) {
    ASSIGN_OR_RETURN(const TextDocument document,
                     ReadTextDocument(o.texts[d], o.context_len + 1, *model));
    std::vector<Job> left;
    for (const Job& job : jobs) {
      if (IsSlow(job.params.policy) && static_cast<int>(d) >= o.slow_texts) continue;
      if (checkpoint.Find(job.KeyFor(document)) == nullptr) left.push_back(job);
    }
    fmt::print(stderr, "quality: text {}/{}: {}, {} settings\n", d + 1, o.texts.size(),
               document.name, left.size());
    if (left.empty()) continue;
    ASSIGN_OR_RETURN(std::vector<Json> rows, scorer.Run(document, left));
    for (Json& row : rows) RETURN_IF_ERROR(checkpoint.Add(std::move(row)));
  }

  Report report("quality", pool);
  for (const auto& [fact, value] : facts.items()) report.SetFact(fact, value);
  report.SetFact("rope_scaling", model->rope_scaling());
  if (!refused.empty()) report.SetFact("left_out", refused);
  report.SetFact("texts", checkpoint.rows());
  for (const Job& job : jobs) {
    const std::vector<Json> rows = RowsOf(checkpoint, job);
    if (!rows.empty()) report.AddRow(Summary(checkpoint, job, rows));
  }
  return report;
}

}  // namespace tokenbutler
