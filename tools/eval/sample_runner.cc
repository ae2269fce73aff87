#include "tools/eval/sample_runner.h"

#include <utility>

#include "engine/selection/policies.h"
#include "fmt/format.h"
#include "tools/eval/attention_columns.h"
#include "tools/scoring/divergence.h"

namespace tokenbutler {
namespace {

// Of prefill, in the work of decoding one token with one setting: a guess that progress is made of.
constexpr double kWorkPerPrefilledToken = 0.05;

double PrefillWork(const Sample& sample) {
  return kWorkPerPrefilledToken * static_cast<double>(sample.context.size());
}

double WorkPerJob(const Sample& sample) {
  return static_cast<double>(sample.question.size() + sample.answer.size()) +
         sample.max_new_tokens * sample.sampling.n;
}

std::vector<int32_t> Joined(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  std::vector<int32_t> joined(a.begin(), a.end());
  joined.insert(joined.end(), b.begin(), b.end());
  return joined;
}

absl::Status CheckSample(const Sample& sample, const EvalOptions& o) {
  if (sample.context.empty() || sample.question.empty() || sample.sampling.n < 1 ||
      (sample.answer.empty() && sample.max_new_tokens < 1)) {
    return InvalidArgumentError(
        "sample {}: context and question have {} and {} tokens, answer and max_new_tokens are {} "
        "and {}: must be at least 1, of the last two one",
        sample.id, sample.context.size(), sample.question.size(), sample.answer.size(),
        sample.max_new_tokens);
  }
  const int forked = sample.num_tokens() - static_cast<int>(sample.context.size());
  if (sample.num_tokens() > o.context_len || forked > o.forked_tokens ||
      sample.sampling.n > o.num_completions) {
    return InvalidArgumentError(
        "sample {}: {} tokens, {} of them behind the context, {} completions: must be at most {}, "
        "{} and {}",
        sample.id, sample.num_tokens(), forked, sample.sampling.n, o.context_len, o.forked_tokens,
        o.num_completions);
  }
  return absl::OkStatus();
}

// What is held of a sample, and what follows it, for a question that goes this way.
struct Split {
  std::vector<int32_t> held;
  Continuation rest;  // without attention, and neither scored nor generating
};

Split SplitOf(const Sample& sample, QuestionPath path) {
  if (path == QuestionPath::kDecoded) {
    return {.held = sample.context, .rest = {.attention = {}, .question = sample.question}};
  }
  // The question's last token is run by each continuation: its logits are wanted.
  const absl::Span<const int32_t> question = sample.question;
  return {.held = Joined(sample.context, question.first(question.size() - 1)),
          .rest = {.attention = {}, .question = {question.back()}, .question_is_decoded = false}};
}

// The continuation that scores the sample's answer. The last of its tokens predicts nothing that is
// asked for; a single one is fed nevertheless when nothing else would be.
Continuation ScoringOf(const Sample& sample, const Continuation& rest) {
  Continuation scoring = rest;
  scoring.scored = sample.answer;
  const bool feeds_only_answer = !rest.question_is_decoded && sample.answer.size() == 1;
  if (feeds_only_answer) return scoring;
  scoring.scored.pop_back();
  scoring.probe = {
      .per_head = true,
      .watched = sample.watched,
      .from_position = static_cast<int>(sample.context.size() + sample.question.size()) - 1};
  return scoring;
}

Continuation GeneratingOf(const Sample& sample, const Continuation& rest) {
  Continuation generating = rest;
  generating.max_tokens = sample.max_new_tokens;
  generating.sampling = sample.sampling;
  generating.stop = sample.stop;
  return generating;
}

}  // namespace

std::string_view QuestionPathName(QuestionPath path) {
  return path == QuestionPath::kDecoded ? "strict" : "papers";
}

absl::StatusOr<QuestionPath> ParseQuestionPath(std::string_view name) {
  for (const QuestionPath path : {QuestionPath::kDecoded, QuestionPath::kPrefilled}) {
    if (name == QuestionPathName(path)) return path;
  }
  return InvalidArgumentError("the question goes \"{}\", must be strict or papers", name);
}

int SampleOutcome::num_right() const {
  return static_cast<int>(std::count_if(answer.begin(), answer.end(),
                                        [](const AnswerToken& token) { return token.is_right; }));
}

Checkpoint::Json RowKey(const SampleRunner::Task& task, const Sample& sample, const TextJob& job) {
  Checkpoint::Json key = {{"task", task.name},
                          {"question", std::string(QuestionPathName(task.question))},
                          {"sample", sample.id}};
  key.update(job.Key());
  return key;
}

absl::Status SampleRunner::Run(const Task& task) {
  std::vector<std::vector<TextJob>> left(task.samples.size());
  for (size_t s = 0; s < task.samples.size(); ++s) {
    const Sample& sample = task.samples[s];
    RETURN_IF_ERROR(CheckSample(sample, session_.options()));
    for (const TextJob& job : session_.jobs()) {
      if (checkpoint_.Find(RowKey(task, sample, job)) == nullptr) left[s].push_back(job);
    }
    if (left[s].empty()) continue;
    progress_.AddWork(PrefillWork(sample) +
                      WorkPerJob(sample) * static_cast<double>(left[s].size()));
  }
  for (size_t s = 0; s < task.samples.size(); ++s) {
    if (left[s].empty()) continue;
    progress_.Begin(fmt::format("{}: sample {}/{}", task.name, s + 1, task.samples.size()));
    RETURN_IF_ERROR(RunSample(task, task.samples[s], left[s]));
  }
  return absl::OkStatus();
}

absl::Status SampleRunner::RunSample(const Task& task, const Sample& sample,
                                     absl::Span<const TextJob> jobs) {
  const Split split = SplitOf(sample, task.question);
  RETURN_IF_ERROR(session_.Hold(split.held, jobs, [this](int) { progress_.Advance(0); }));
  progress_.Advance(PrefillWork(sample));

  // Of each job: the continuation that scores, then the one that generates.
  std::vector<Continuation> continuations;
  std::vector<std::pair<size_t, bool>> meaning;  // job, and whether it scores
  std::vector<SampleOutcome> outcomes(jobs.size());
  for (size_t j = 0; j < jobs.size(); ++j) {
    if (!sample.answer.empty()) {
      continuations.push_back(ScoringOf(sample, split.rest));
      continuations.back().attention = jobs[j].params;
      meaning.emplace_back(j, true);
      outcomes[j].answer.resize(sample.answer.size());
    }
    if (sample.max_new_tokens > 0) {
      continuations.push_back(GeneratingOf(sample, split.rest));
      continuations.back().attention = jobs[j].params;
      meaning.emplace_back(j, false);
    }
  }
  const auto on_logits = [&](int c, int i, absl::Span<const float> logits) {
    const int at = i + 1;  // what the token predicts
    if (at >= static_cast<int>(sample.answer.size())) return;
    const int32_t token = sample.answer[at];
    SampleOutcome::AnswerToken& predicted = outcomes[meaning[c].first].answer[at];
    predicted = {.logprob = -NegativeLogLikelihood(logits, token), .most_likely = TopToken(logits)};
    predicted.is_right = predicted.most_likely == token;
    progress_.Advance(0);
  };
  ASSIGN_OR_RETURN(std::vector<ContinuationResult> results,
                   session_.forks().Run(continuations, on_logits));
  for (size_t c = 0; c < results.size(); ++c) {
    const auto [j, scores] = meaning[c];
    if (scores || sample.answer.empty()) {
      outcomes[j].attention = results[c].attention;
      outcomes[j].probes = std::move(results[c].probes);
    }
    if (!scores) outcomes[j].completions = std::move(results[c].completions);
  }
  progress_.Advance(WorkPerJob(sample) * static_cast<double>(jobs.size()));
  for (size_t j = 0; j < jobs.size(); ++j) {
    Checkpoint::Json row = RowKey(task, sample, jobs[j]);
    row.update(
        AttentionColumns(jobs[j], outcomes[j].attention, sample.num_tokens(), session_.model()));
    row.update(task.row(sample, outcomes[j]));
    RETURN_IF_ERROR(checkpoint_.Add(std::move(row)));
  }
  return absl::OkStatus();
}

}  // namespace tokenbutler
