#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/compute_pool.h"
#include "base/status.h"
#include "tools/eval/eval_session.h"
#include "tools/eval/sample_runner.h"
#include "tools/eval/tasks/prompt_format.h"
#include "tools/eval/tasks/task_sample.h"
#include "tools/scoring/report.h"

namespace tokenbutler {

// What evaluations that ask questions have in common.
struct TaskOptions {
  EvalOptions eval;  // context_len: of prompt and answer; forked_tokens, num_completions: not read
  QuestionPath question = QuestionPath::kDecoded;
  ChatUse chat = ChatUse::kAsBenchmark;
  uint64_t seed = 1;
  // The average over tasks leaves out those that the model cannot do: with a lower score under
  // dense attention.
  double min_dense_score = 0.2;
};

// Some tasks, in which nothing but the model decides what is asked.
struct TaskSet {
  std::string evaluation;  // "ruler"
  Report::Json facts;      // on which all rows depend, beside the model's: where texts come from
  // The samples, those of a task together.
  std::function<absl::StatusOr<std::vector<TaskSample>>(const PromptFormat&)> make_samples;
};

// Every sample under every setting (and under dense and exact, with which the others are compared),
// resumable by options.eval.choice.resume; a table of each task
// under each setting and, when there are several tasks, their average ("average" in the column
// task; the same weight for each sample). Errors of make_samples, of EvalSession and SampleRunner.
absl::StatusOr<Report> RunTasks(const TaskOptions& options, const TaskSet& tasks,
                                ComputePool& pool);

// "benchmark", "always", "never".
std::string_view ChatUseName(ChatUse use);
absl::StatusOr<ChatUse> ParseChatUse(std::string_view name);

}  // namespace tokenbutler
