#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "engine/attention_probes.h"
#include "engine/request.h"
#include "tools/eval/eval_session.h"
#include "tools/eval/progress.h"
#include "tools/scoring/checkpoint.h"
#include "tools/scoring/prompt_forks.h"

namespace tokenbutler {

// One sample of a task: a context that every setting shares, a question about it, and what is to be
// found out: how likely an answer is, or what the model answers, or both.
struct Sample {
  std::string id;                    // unique within a task
  std::vector<int32_t> context;      // held; not empty
  std::vector<int32_t> question;     // behind it; not empty
  std::vector<int32_t> answer = {};  // scored, each token whatever the model thinks of it
  int max_new_tokens = 0;            // generated behind the question at most
  SamplingParams sampling = GreedySampling();
  StopParams stop = {};
  // Tokens of the context whose attention is of interest while the answer is scored.
  std::vector<int32_t> watched = {};

  int num_tokens() const {  // that a sequence needs room for
    return static_cast<int>(context.size() + question.size()) +
           std::max(static_cast<int>(answer.size()), max_new_tokens);
  }
};

// Where a question goes.
enum class QuestionPath {
  kDecoded,    // token by token through each setting's attention, as generated tokens go: "strict"
  kPrefilled,  // into the dense prefill with the context, as the papers have it: "papers"
};
std::string_view QuestionPathName(QuestionPath path);
absl::StatusOr<QuestionPath> ParseQuestionPath(std::string_view name);

// What a setting made of a sample.
struct SampleOutcome {
  struct AnswerToken {
    double logprob = 0;        // of the answer's token
    int32_t most_likely = -1;  // token
    bool is_right = false;     // they are the same
  };
  std::vector<AnswerToken> answer;      // [Sample::answer]
  std::vector<Completion> completions;  // [sampling.n] when max_new_tokens > 0
  AttentionStats attention;             // while the answer was scored, or else generated
  // Of the steps that predict the answer's tokens; with a prefilled question, all but the first,
  // which the prefill predicts. Empty for dense attention.
  AttentionProbes probes;

  int num_right() const;  // tokens of the answer
};

// Runs the samples of one task through the settings of a session, and keeps a row for each pair.
class SampleRunner {
 public:
  struct Task {
    std::string name;  // in every row: "ruler niah_single_1"
    QuestionPath question = QuestionPath::kDecoded;
    std::vector<Sample> samples;
    // The columns of a sample's row beside those that all tasks have (RowKey). "score", in [0, 1],
    // is what summaries are made of.
    std::function<Checkpoint::Json(const Sample&, const SampleOutcome&)> row;
  };

  // What is given must outlive this.
  SampleRunner(EvalSession& session, Checkpoint& checkpoint, Progress& progress)
      : session_(session), checkpoint_(checkpoint), progress_(progress) {}

  // Every sample of the task under every setting, but for those whose rows are there already. A
  // sample whose question goes into the prefill is prefilled with it, all but its last token.
  // INVALID_ARGUMENT naming the sample that is empty or too long for the session.
  absl::Status Run(const Task& task);

 private:
  absl::Status RunSample(const Task& task, const Sample& sample, absl::Span<const TextJob> jobs);

  EvalSession& session_;
  Checkpoint& checkpoint_;
  Progress& progress_;
};

// Of the row of a sample under a setting: task, question, sample, setting, token_budget, predictor.
Checkpoint::Json RowKey(const SampleRunner::Task& task, const Sample& sample, const TextJob& job);

}  // namespace tokenbutler
