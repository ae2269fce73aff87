#pragma once

#include <string>
#include <vector>

#include "tools/eval/sample_runner.h"
#include "tools/eval/tasks/prompt_format.h"
#include "tools/eval/tasks/task_sample.h"
#include "tools/scoring/checkpoint.h"
#include "tools/scoring/text_jobs.h"

namespace tokenbutler {

// What the runner is given of a sample.
Sample RunnerSample(const TaskSample& sample, const TaskPrompt& prompt);

// The columns of a sample's row under a setting:
//   seed, prompt_tokens, score (null when a script scores), output (text, or a list of several),
//   finish (why it ended), expected, and the members of TaskSample::extra_json.
// With a forced answer, score is 1 when each of its tokens is the most likely one, and beside it
// stand: token_score (share of such tokens), answer_logprob, generated_score (of the text that was
// generated), and how much of the evidence the setting attended to while it predicted the answer:
//   coverage_mean  mean over layers and KV heads of the share of the evidence's tokens
//   coverage_any   mean over layers of the share that some KV head attends to
//   coverage_mass  share of the attention mass that dense attention gives to the evidence
// Over the layers that chose; 1 for dense attention, null when nothing was compared.
Checkpoint::Json TaskRow(const TaskSample& sample, const TaskPrompt& prompt,
                         const SampleOutcome& outcome);

// Rows of one task, or of several, under one setting, and those of the same samples under what it
// is compared with.
struct ComparedRows {
  std::vector<Checkpoint::Json> own;    // not empty
  std::vector<Checkpoint::Json> dense;  // under dense attention
  std::vector<Checkpoint::Json> exact;  // under `exact` at the same budget
};

// A row of the table: what a task's samples say together. Comparisons are paired over the samples
// that both have; null without. "tie": the 95 % interval of the difference holds 0.
Checkpoint::Json TaskSummary(const std::string& task, QuestionPath question, const TextJob& job,
                             const ComparedRows& rows);

}  // namespace tokenbutler
