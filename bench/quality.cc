#include <algorithm>
#include <cmath>
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
#include "tools/scoring/prompt_scorer.h"
#include "tools/scoring/text_document.h"
#include "tools/scoring/text_jobs.h"

namespace tokenbutler {
namespace {

using Json = Report::Json;

std::string ModelName(const QualityOptions& o) {
  return std::filesystem::path(o.model).filename().string();
}

// Policies that take minutes for a text.
bool IsSlow(AttentionPolicy policy) {
  return LearnsFromPrefill(policy) || policy == AttentionPolicy::kXkv;
}

// A text's prompt, and for each job (and dense attention) what is its own.
int NumBlocks(const std::vector<TextJob>& jobs, const QualityOptions& o,
              const SelectionResources& resources) {
  const KvLayout& layout = resources.layout;
  const int whole = layout.blocks_for(o.context_len);
  const int own = layout.blocks_for(o.scored_tokens) + 1;
  const int64_t block_bytes = static_cast<int64_t>(layout.block_bytes());
  int64_t num_blocks = whole + own;
  for (const TextJob& job : jobs) {
    const PolicyMemory memory = PolicyMemoryFor(job.params, resources, o.context_len);
    const int64_t policy_blocks = StateLayoutFor(job.params, resources).blocks_for(whole) +
                                  (memory.own + memory.shared) / block_bytes + 1;
    // What has watched the prefill, and what goes on from it.
    num_blocks += own + (LearnsFromPrefill(job.params.policy) ? 2 : 1) * policy_blocks;
  }
  return static_cast<int>(num_blocks);
}

// Sums over the scored positions.
struct Score {
  double kl = 0, nll = 0;
  int same_top = 0;
};

// A model at work on texts, and what it has prefilled before.
struct TextEngine {
  std::unique_ptr<MeasuredModel> model;
  std::unique_ptr<PrefillCache> cache;
  std::unique_ptr<PromptScorer> scorer;
};

absl::StatusOr<TextEngine> NewTextEngine(const QualityOptions& o,
                                         const MeasuredModel::Options& setup, ComputePool& pool) {
  TextEngine engine;
  ASSIGN_OR_RETURN(engine.model, MeasuredModel::Create(setup, pool));
  engine.cache = std::make_unique<PrefillCache>(o.prefill_cache, ModelName(o), *engine.model);
  ASSIGN_OR_RETURN(
      engine.scorer,
      PromptScorer::Create(*engine.model, {.context_len = o.context_len,
                                           .max_num_seqs = setup.runner.max_num_seqs,
                                           .prefill_chunk_tokens = o.prefill_chunk_tokens}));
  return engine;
}

class DocumentScorer {
 public:
  // `reference` decodes densely what the jobs are compared with: `jobs` itself, or an engine with
  // another KV cache.
  DocumentScorer(const QualityOptions& options, TextEngine& jobs, TextEngine& reference)
      : options_(options), jobs_(jobs), reference_(reference) {}

  // A row for each job.
  absl::StatusOr<std::vector<Json>> Run(const TextDocument& document,
                                        const std::vector<TextJob>& jobs) {
    const int prefix = options_.context_len - options_.scored_tokens;
    const absl::Span<const int32_t> tokens = document.tokens;
    RETURN_IF_ERROR(Hold(document, tokens.first(prefix), jobs, jobs_));
    if (&reference_ != &jobs_) {
      RETURN_IF_ERROR(Hold(document, tokens.first(prefix), {}, reference_));
    }
    RETURN_IF_ERROR(ScoreDense(tokens.subspan(prefix)));
    std::vector<AttentionParams> attentions;
    attentions.reserve(jobs.size());
    for (const TextJob& job : jobs) attentions.push_back(job.params);
    std::vector<Score> scores(jobs.size());
    ASSIGN_OR_RETURN(
        const std::vector<AttentionStats> stats,
        jobs_.scorer->Score(tokens.subspan(prefix, options_.scored_tokens), attentions,
                            [&](int j, int i, absl::Span<const float> logits) {
                              if (j == 0) PrintPosition(document, i);
                              Score& score = scores[j];
                              score.kl += references_[i].KlDivergence(logits);
                              score.same_top += TopToken(logits) == references_[i].top_token();
                              score.nll += NegativeLogLikelihood(logits, tokens[prefix + i + 1]);
                            }));
    fmt::print(stderr, "\n");
    std::vector<Json> rows;
    for (size_t j = 0; j < jobs.size(); ++j) {
      rows.push_back(RowOf(document, jobs[j], scores[j], stats[j]));
    }
    return rows;
  }

 private:
  // Everything before the scored tokens, once for all jobs.
  absl::Status Hold(const TextDocument& document, absl::Span<const int32_t> prompt,
                    const std::vector<TextJob>& jobs, TextEngine& engine) {
    std::vector<AttentionParams> watching;
    for (const TextJob& job : jobs) {
      if (LearnsFromPrefill(job.params.policy)) watching.push_back(job.params);
    }
    // They want the prompt's queries, which no file has.
    const std::shared_ptr<const PromptRows> rows =
        watching.empty() ? engine.cache->Load(prompt) : nullptr;
    RETURN_IF_ERROR(engine.scorer->Hold(prompt, watching, rows, [&](int done) {
      fmt::print(stderr, "\rquality: {}: prefill {}/{} ", document.name, done, prompt.size());
    }));
    if (rows != nullptr) return absl::OkStatus();
    fmt::print(stderr, "\n");
    ASSIGN_OR_RETURN(const BlockTable blocks, engine.scorer->Blocks());
    return engine.cache->Store(prompt, blocks);
  }

  // What the others are compared with. `tokens`: the scored ones and the one after them.
  absl::Status ScoreDense(absl::Span<const int32_t> tokens) {
    references_.clear();
    dense_nll_ = 0;
    return reference_.scorer
        ->Score(tokens.first(options_.scored_tokens), {AttentionParams{}},
                [&](int, int i, absl::Span<const float> logits) {
                  references_.emplace_back(logits);
                  dense_nll_ += NegativeLogLikelihood(logits, tokens[i + 1]);
                })
        .status();
  }

  void PrintPosition(const TextDocument& document, int i) const {
    fmt::print(stderr, "\rquality: {}: position {}/{} ", document.name, i + 1,
               options_.scored_tokens);
  }

  Json RowOf(const TextDocument& document, const TextJob& job, const Score& score,
             const AttentionStats& stats) const {
    const double count = options_.scored_tokens;
    Json row = job.KeyFor(document);
    row["mean_kl"] = score.kl / count;
    row["same_top"] = score.same_top / count;
    row["nll"] = score.nll / count;
    row["dense_nll"] = dense_nll_ / count;
    row["attended_tokens"] = job.params.sparse() ? static_cast<double>(stats.attended_tokens) /
                                                       static_cast<double>(stats.attended_lists)
                                                 : options_.context_len - (count - 1) / 2;
    row["mass_recall"] = stats.recall_probes == 0
                             ? Json()
                             : Json(stats.recall_sum / static_cast<double>(stats.recall_probes));
    return row;
  }

  const QualityOptions& options_;
  TextEngine &jobs_, &reference_;
  std::vector<ReferenceDistribution> references_;  // one per scored token
  double dense_nll_ = 0;
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

Json Summary(const Checkpoint& checkpoint, const TextJob& job, const std::vector<Json>& rows) {
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
      {"documents", rows.size()}};
}

absl::Status CheckOptions(const QualityOptions& o) {
  if (o.texts.empty()) return InvalidArgumentError("there are no texts");
  if (o.scored_tokens >= o.context_len) {
    return InvalidArgumentError("scored_tokens is {}, must be less than context_len, {}",
                                o.scored_tokens, o.context_len);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> RunQuality(const QualityOptions& o, ComputePool& pool) {
  RETURN_IF_ERROR(CheckOptions(o));
  MeasuredModel::Options setup;
  setup.model = o.model;
  setup.dtype = o.dtype;
  setup.context_len = o.context_len;
  setup.needs_tokenizer = true;
  setup.runner.prefill_chunk_tokens = o.prefill_chunk_tokens;
  TextEngine dense;  // the compute dtype is not known before its model is there
  if (!o.kv_dtype.empty()) {
    setup.num_blocks = [&](const SelectionResources& r) { return NumBlocks({}, o, r); };
    setup.runner.max_num_seqs = 1;
    ASSIGN_OR_RETURN(dense, NewTextEngine(o, setup, pool));
    if (o.kv_dtype == DTypeName(dense.model->runner().compute_dtype())) dense = {};
  }
  const bool has_other_cache = dense.model != nullptr;
  ASSIGN_OR_RETURN(std::vector<TextJob> jobs,
                   TextJobsOf(o.choice, o.context_len, /*with_dense=*/has_other_cache));
  setup.kv_dtype = o.kv_dtype;
  setup.num_blocks = [&](const SelectionResources& r) { return NumBlocks(jobs, o, r); };
  setup.predictor = o.choice.predictor;
  setup.runner.max_num_seqs = static_cast<int>(jobs.size()) + 1;
  setup.runner.recall_probe_rate = 1;
  ASSIGN_OR_RETURN(TextEngine engine, NewTextEngine(o, setup, pool));
  const MeasuredModel* model = engine.model.get();
  const std::vector<std::string> refused = RemoveRefused(engine.model->runner(), &jobs);
  const Json facts = {{"benchmark", "quality"},
                      {"model", ModelName(o)},
                      {"dtype", model->dtypes()},
                      {"context_len", o.context_len},
                      {"scored_tokens", o.scored_tokens},
                      {"sink_tokens", o.choice.sink_tokens},
                      {"local_window", o.choice.local_window}};
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(o.choice.resume, facts));
  DocumentScorer scorer(o, engine, has_other_cache ? dense : engine);
  for (size_t d = 0; d < o.texts.size(); ++d) {
    ASSIGN_OR_RETURN(const TextDocument document,
                     ReadTextDocument(o.texts[d], o.context_len + 1, *model));
    std::vector<TextJob> left;
    for (const TextJob& job : jobs) {
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
  for (const TextJob& job : jobs) {
    const std::vector<Json> rows = job.RowsIn(checkpoint);
    if (!rows.empty()) report.AddRow(Summary(checkpoint, job, rows));
  }
  return report;
}

}  // namespace tokenbutler
