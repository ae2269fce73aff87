#include "tools/eval/task_rows.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "tools/eval/row_columns.h"
#include "tools/scoring/bootstrap.h"

namespace tokenbutler {
namespace {

using Json = Checkpoint::Json;

std::string FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kStopString:
    case FinishReason::kStopToken:
      return "stop";
    case FinishReason::kLength:
    case FinishReason::kContextLength:
      return "length";
    case FinishReason::kCancelled:
      break;
  }
  return "cancelled";
}

// The value itself when there is one, else a list.
Json OneOrList(std::vector<Json> values) {
  if (values.size() == 1) return std::move(values[0]);
  return Json(std::move(values));
}

double MeanScore(const TaskSample& sample, const SampleOutcome& outcome) {
  double sum = 0;
  for (const Completion& completion : outcome.completions) {
    sum += ScoreAnswer(sample, completion.text);
  }
  return sum / static_cast<double>(outcome.completions.size());
}

Json Ratio(double sum, double count) { return count > 0 ? Json(sum / count) : Json(); }

void AddCoverage(const AttentionProbes& probes, bool is_dense, Json* row) {
  double any = 0, layers = 0, share = 0, heads = 0, covered_mass = 0, mass = 0;
  for (const LayerProbes& layer : probes.layers) {
    if (layer.count == 0) continue;
    any += layer.watched_by_any / static_cast<double>(layer.count);
    ++layers;
  }
  for (const HeadProbes& head : probes.heads) {
    if (head.count == 0) continue;
    share += head.watched / static_cast<double>(head.count);
    ++heads;
    covered_mass += head.attended_watched_mass;
    mass += head.watched_mass;
  }
  (*row)["coverage_mean"] = is_dense ? Json(1.0) : Ratio(share, heads);
  (*row)["coverage_any"] = is_dense ? Json(1.0) : Ratio(any, layers);
  (*row)["coverage_mass"] = is_dense ? Json(1.0) : Ratio(covered_mass, mass);
}

void AddForcedAnswer(const SampleOutcome& outcome, Json* row) {
  const auto num_tokens = static_cast<double>(outcome.answer.size());
  double logprob = 0;
  for (const SampleOutcome::AnswerToken& token : outcome.answer) logprob += token.logprob;
  (*row)["generated_score"] = (*row)["score"];
  (*row)["score"] = outcome.num_right() == num_tokens ? 1.0 : 0.0;
  (*row)["token_score"] = outcome.num_right() / num_tokens;
  (*row)["answer_logprob"] = logprob;
  const bool is_dense = outcome.attention.attended_lists == 0;
  AddCoverage(outcome.probes, is_dense, row);
}

// The scores by sample, where there are any.
std::map<std::string, double> ScoresBySample(const std::vector<Json>& rows) {
  std::map<std::string, double> values;
  for (const Json& row : rows) {
    if (row["score"].is_null()) continue;
    values[row["sample"].get<std::string>()] = row["score"].get<double>();
  }
  return values;
}

// The scores of the samples that both have; nullopt: there are none.
std::optional<MeanInterval> Difference(const std::vector<Json>& rows,
                                       const std::vector<Json>& others) {
  std::vector<double> own, partners;
  const std::map<std::string, double> reference = ScoresBySample(others);
  for (const auto& [sample, score] : ScoresBySample(rows)) {
    const auto pair = reference.find(sample);
    if (pair == reference.end()) continue;
    own.push_back(score);
    partners.push_back(pair->second);
  }
  if (own.empty()) return std::nullopt;
  return BootstrapDifference(own, partners);
}

Json VerdictOf(const std::optional<MeanInterval>& difference) {
  return difference ? Json(Verdict(*difference, /*less_is_better=*/false)) : Json();
}

void AddInterval(const std::optional<MeanInterval>& interval, const std::string& name,
                 Json* summary) {
  (*summary)[name] = interval ? Json(interval->mean) : Json();
  (*summary)[name + "_low"] = interval ? Json(interval->low) : Json();
  (*summary)[name + "_high"] = interval ? Json(interval->high) : Json();
}

}  // namespace

Sample RunnerSample(const TaskSample& sample, const TaskPrompt& prompt) {
  Sample made;
  made.id = sample.id();
  made.context = prompt.context;
  made.question = prompt.question;
  made.answer = prompt.forced_answer;
  made.max_new_tokens = sample.max_tokens;
  made.sampling.temperature = static_cast<float>(sample.temperature);
  made.sampling.top_p = static_cast<float>(sample.top_p);
  made.sampling.n = sample.num_answers;
  made.sampling.seed = sample.seed * 1000003 + static_cast<uint64_t>(sample.index);
  made.stop.strings = sample.stops;
  made.sampling.min_tokens = sample.stops.empty() ? 0 : 1;
  for (const auto& [begin, end] : prompt.evidence) {
    for (int t = begin; t < end; ++t) made.watched.push_back(t);
  }
  return made;
}

Json TaskRow(const TaskSample& sample, const TaskPrompt& prompt, const SampleOutcome& outcome) {
  Json row = {{"seed", sample.seed}, {"prompt_tokens", prompt.num_tokens()}};
  std::vector<Json> outputs, reasons;
  for (const Completion& completion : outcome.completions) {
    outputs.emplace_back(completion.text);
    reasons.emplace_back(FinishName(completion.reason));
  }
  const bool is_scored = sample.metric != AnswerMetric::kScript && !outputs.empty();
  row["score"] = is_scored ? Json(MeanScore(sample, outcome)) : Json();
  if (!outcome.answer.empty()) AddForcedAnswer(outcome, &row);
  row["output"] = OneOrList(std::move(outputs));
  row["finish"] = OneOrList(std::move(reasons));
  row["expected"] = sample.answers;
  if (!sample.extra_json.empty()) row.update(Json::parse(sample.extra_json));
  return row;
}

Json TaskSummary(const std::string& task, QuestionPath question, const TextJob& job,
                 const ComparedRows& rows) {
  Json summary = {{"task", task},
                  {"question", std::string(QuestionPathName(question))},
                  {"setting", job.label},
                  {"token_budget", job.params.token_budget},
                  {"predictor", job.predictor.empty() ? Json() : Json(job.predictor)},
                  {"interval", job.params.prediction_interval},
                  {"candidates", job.params.candidates}};
  const std::vector<double> scores = ColumnOf(rows.own, "score");
  AddInterval(scores.empty() ? std::nullopt : std::optional(BootstrapMean(scores)), "score",
              &summary);
  const std::optional<MeanInterval> minus_dense = Difference(rows.own, rows.dense);
  AddInterval(minus_dense, "minus_dense", &summary);
  summary["vs_dense"] = VerdictOf(minus_dense);
  summary["vs_exact"] = VerdictOf(Difference(rows.own, rows.exact));
  for (const char* column :
       {"attended_tokens", "mass_recall", "read_bytes", "moved_bytes", "hit_rate"}) {
    summary[column] = MeanOf(rows.own, column);
  }
  // Where answers are forced.
  for (const char* column :
       {"token_score", "generated_score", "coverage_mean", "coverage_any", "coverage_mass"}) {
    if (rows.own[0].contains(column)) summary[column] = MeanOf(rows.own, column);
  }
  summary["samples"] = rows.own.size();
  return summary;
}

}  // namespace tokenbutler
