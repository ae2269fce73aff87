#include "tools/eval/kl.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "engine/selection/policies.h"
#include "fmt/format.h"
#include "tools/eval/attention_columns.h"
#include "tools/eval/kl_summary.h"
#include "tools/eval/progress.h"
#include "tools/scoring/divergence.h"
#include "tools/scoring/text_document.h"

namespace tokenbutler {
namespace {

using Json = Report::Json;

// Of prefill, in the work of decoding one token with one setting: a guess that progress is made of.
constexpr double kWorkPerPrefilledToken = 0.05;

// Policies that take minutes for a text.
bool IsSlow(AttentionPolicy policy) {
  return LearnsFromPrefill(policy) || policy == AttentionPolicy::kXkv;
}

// Sums over the scored positions.
struct Score {
  double kl = 0, nll = 0;
  int same_top = 0;
};

class DocumentScorer {
 public:
  // `reference` decodes densely what the jobs are compared with: `jobs` itself, or a session with
  // another KV cache.
  DocumentScorer(const KlOptions& options, EvalSession& jobs, EvalSession& reference,
                 Progress& progress)
      : options_(options), jobs_(jobs), reference_(reference), progress_(progress) {}

  // Of the work that progress counts.
  double WorkOf(size_t num_jobs) const {
    return kWorkPerPrefilledToken * prefix() + options_.scored_tokens * (1.0 + num_jobs);
  }

  // A row for each job.
  absl::StatusOr<std::vector<Json>> Run(const TextDocument& document,
                                        absl::Span<const TextJob> jobs) {
    const absl::Span<const int32_t> tokens = document.tokens;
    RETURN_IF_ERROR(Hold(tokens.first(prefix()), jobs));
    ASSIGN_OR_RETURN(const double dense_nll, ScoreDense(tokens.subspan(prefix())));
    std::vector<Continuation> continuations;
    for (const TextJob& job : jobs) {
      continuations.push_back(ContinuationOf(tokens.subspan(prefix()), job.params));
    }
    std::vector<Score> scores(jobs.size());
    ASSIGN_OR_RETURN(const std::vector<ContinuationResult> results,
                     jobs_.forks().Run(continuations, [&](int j, int i, auto logits) {
                       Score& score = scores[j];
                       score.kl += references_[i].KlDivergence(logits);
                       score.same_top += TopToken(logits) == references_[i].top_token();
                       score.nll += NegativeLogLikelihood(logits, tokens[prefix() + i + 1]);
                       progress_.Advance(1);
                     }));
    std::vector<Json> rows;
    for (size_t j = 0; j < jobs.size(); ++j) {
      if (!std::isfinite(scores[j].kl) || !std::isfinite(scores[j].nll)) {
        return InternalError("{}, {}: the divergence is {}, must be a finite number", document.name,
                             jobs[j].label, scores[j].kl);
      }
      rows.push_back(RowOf(document, jobs[j], scores[j], dense_nll, results[j]));
    }
    return rows;
  }

 private:
  int prefix() const { return options_.eval.context_len - options_.scored_tokens; }

  // `tokens`: the scored ones and the one after them.
  Continuation ContinuationOf(absl::Span<const int32_t> tokens,
                              const AttentionParams& attention) const {
    const absl::Span<const int32_t> scored = tokens.first(options_.scored_tokens);
    return {.attention = attention,
            .scored = {scored.begin(), scored.end()},
            .probe = {.per_head = true}};
  }

  // Everything before the scored tokens, once for all jobs.
  absl::Status Hold(absl::Span<const int32_t> prompt, absl::Span<const TextJob> jobs) {
    int done = 0;
    const auto advance = [&](int now) {
      progress_.Advance(kWorkPerPrefilledToken * std::max(0, now - done));
      done = std::max(done, now);
    };
    RETURN_IF_ERROR(jobs_.Hold(prompt, jobs, advance));
    if (&reference_ != &jobs_) RETURN_IF_ERROR(reference_.Hold(prompt, {}, nullptr));
    advance(static_cast<int>(prompt.size()));  // from a file: at once
    return absl::OkStatus();
  }

  // What the others are compared with; mean negative log-likelihood.
  absl::StatusOr<double> ScoreDense(absl::Span<const int32_t> tokens) {
    references_.clear();
    double nll = 0;
    const Continuation dense = ContinuationOf(tokens, AttentionParams());
    RETURN_IF_ERROR(reference_.forks()
                        .Run({&dense, 1},
                             [&](int, int i, auto logits) {
                               references_.emplace_back(logits);
                               nll += NegativeLogLikelihood(logits, tokens[i + 1]);
                               progress_.Advance(1);
                             })
                        .status());
    return nll / options_.scored_tokens;
  }

  Json RowOf(const TextDocument& document, const TextJob& job, const Score& score, double dense_nll,
             const ContinuationResult& result) const {
    const double count = options_.scored_tokens;
    Json row = job.KeyFor(document);
    row["mean_kl"] = score.kl / count;
    row["same_top"] = score.same_top / count;
    row["nll"] = score.nll / count;
    row["dense_nll"] = dense_nll;
    row.update(AttentionColumns(job, result.attention, options_.eval.context_len, jobs_.model()));
    double overlap = 0;
    int64_t choices = 0;
    for (const HeadProbes& head : result.probes.heads) {
      overlap += head.overlap;
      choices += head.choices;
    }
    row["overlap"] = choices == 0 ? Json() : Json(overlap / static_cast<double>(choices));
    if (!result.probes.heads.empty()) row["probes"] = ProbeColumns(result.probes);
    return row;
  }

  const KlOptions& options_;
  EvalSession &jobs_, &reference_;
  Progress& progress_;
  std::vector<ReferenceDistribution> references_;  // one per scored token
};

// Files, and those of folders in alphabetical order.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    std::filesystem::recursive_directory_iterator at(path, error), end;
    for (; !error && at != end; at.increment(error)) {
      std::error_code ignored;
      if (at->is_regular_file(ignored)) found.push_back(at->path().string());
    }
    if (error) return NotFoundError("{} cannot be read: {}", path, error.message());
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  if (files.empty()) return InvalidArgumentError("there are no texts");
  return files;
}

// The texts that are long enough, and how many were not.
struct Texts {
  std::vector<TextDocument> documents;
  int num_too_short = 0;
};

absl::StatusOr<Texts> ReadTexts(const KlOptions& o, const MeasuredModel& model) {
  ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(o.texts));
  Texts texts;
  std::set<std::string> fingerprints;
  for (const std::string& file : files) {
    if (static_cast<int>(texts.documents.size()) == o.max_texts) break;
    absl::StatusOr<TextDocument> document = ReadTextDocument(file, o.eval.context_len + 1, model);
    if (document.status().code() == absl::StatusCode::kInvalidArgument) {
      ++texts.num_too_short;
      fmt::print(stderr, "left out: {}\n", std::string(document.status().message()));
      continue;
    }
    RETURN_IF_ERROR(document.status());
    if (!fingerprints.insert(document->fingerprint).second) {
      fmt::print(stderr, "left out: {} is the same text as another\n", file);
      continue;
    }
    texts.documents.push_back(*std::move(document));
  }
  if (texts.documents.empty()) {
    return InvalidArgumentError("none of {} texts has {} tokens", files.size(),
                                o.eval.context_len + 1);
  }
  return texts;
}

// A session that decodes densely with a cache of the compute dtype; null when `jobs` does.
absl::StatusOr<std::unique_ptr<EvalSession>> NewReference(const EvalOptions& options,
                                                          ComputePool& pool) {
  if (options.kv_dtype.empty()) return nullptr;
  EvalOptions dense = options;
  dense.kv_dtype.clear();
  dense.choice.settings.clear();
  dense.choice.predictor.clear();
  dense.batch = 1;
  ASSIGN_OR_RETURN(std::unique_ptr<EvalSession> session, EvalSession::Create(dense, pool));
  if (options.kv_dtype == DTypeName(session->model().runner().compute_dtype())) return nullptr;
  return session;
}

// The rows of all texts and jobs that the checkpoint has not.
absl::Status Measure(const KlOptions& o, const std::vector<TextDocument>& documents,
                     EvalSession& session, EvalSession& reference, Checkpoint* checkpoint) {
  Progress progress = Progress::OnStderr("kl");
  DocumentScorer scorer(o, session, reference, progress);
  std::vector<std::vector<TextJob>> left(documents.size());
  for (size_t d = 0; d < documents.size(); ++d) {
    for (const TextJob& job : session.jobs()) {
      if (IsSlow(job.params.policy) && static_cast<int>(d) >= o.slow_texts) continue;
      if (checkpoint->Find(job.KeyFor(documents[d])) == nullptr) left[d].push_back(job);
    }
    if (!left[d].empty()) progress.AddWork(scorer.WorkOf(left[d].size()));
  }
  for (size_t d = 0; d < documents.size(); ++d) {
    if (left[d].empty()) continue;
    progress.Begin(fmt::format("text {}/{}, {} settings: {}", d + 1, documents.size(),
                               left[d].size(), documents[d].name));
    ASSIGN_OR_RETURN(std::vector<Json> rows, scorer.Run(documents[d], left[d]));
    for (Json& row : rows) RETURN_IF_ERROR(checkpoint->Add(std::move(row)));
  }
  progress.End();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> RunKl(const KlOptions& options, ComputePool& pool) {
  KlOptions o = options;
  o.eval.forked_tokens = o.scored_tokens;
  ASSIGN_OR_RETURN(const std::unique_ptr<EvalSession> reference, NewReference(o.eval, pool));
  o.eval.with_dense = reference != nullptr;  // else the others are compared with it
  ASSIGN_OR_RETURN(const std::unique_ptr<EvalSession> session, EvalSession::Create(o.eval, pool));
  ASSIGN_OR_RETURN(const Texts texts, ReadTexts(o, session->model()));
  Json facts = session->Facts("kl");
  facts["scored_tokens"] = o.scored_tokens;
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(o.eval.choice.resume, facts));
  RETURN_IF_ERROR(Measure(o, texts.documents, *session,
                          reference == nullptr ? *session : *reference, &checkpoint));

  Report report = session->NewReport("kl", facts);
  report.SetFact("texts_too_short", texts.num_too_short);
  report.SetFact("intervals", "95 %, 10000 bootstrap resamples of the texts, seed 1");
  Json heads = Json::array(), rows_of_texts = Json::array();
  for (const TextJob& job : session->jobs()) {
    const std::vector<Json> rows = job.RowsIn(checkpoint);
    if (rows.empty()) continue;
    report.AddRow(KlSummary(checkpoint, job, rows));
    heads.push_back(job.Key());
    heads.back().update(MeanProbes(rows));
    for (Json row : rows) {
      row.erase("probes");
      rows_of_texts.push_back(std::move(row));
    }
  }
  const KvLayout& layout = session->model().layout();
  report.SetFact("num_layers", layout.num_layers);
  report.SetFact("num_kv_heads", layout.num_kv_heads);
  report.SetFact("heads", std::move(heads));
  report.SetFact("texts", std::move(rows_of_texts));
  return report;
}

}  // namespace tokenbutler
