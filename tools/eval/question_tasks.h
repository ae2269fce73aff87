#pragma once

#include <string>
#include <vector>

#include "base/compute_pool.h"
#include "base/status.h"
#include "tools/eval/task_evaluation.h"
#include "tools/scoring/report.h"

namespace tokenbutler {

// Co-reference with invented names (tasks/coref.h).
struct CorefOptions {
  // Of 300 tokens, as in the paper, half is the least that holds the smallest window (a block of
  // 128 tokens) and some choice. Every layer is compared at every step: answers are short.
  TaskOptions task = {
      .eval = {.choice = {.settings = AllSettings(), .sink_tokens = 4, .local_window = 128},
               .budgets = {"1/2"},
               .context_len = 300,
               .probe_rate = 1000}};
  int num_samples = 100;
};
absl::StatusOr<Report> RunCoref(const CorefOptions& options, ComputePool& pool);

// RULER (tasks/ruler.h).
struct RulerOptions {
  TaskOptions task = {.eval = {.budgets = {"1/8"}, .context_len = 4096}};
  std::vector<std::string> tasks;   // names; empty: all that have what they need
  int num_samples = 50;             // of each task
  std::vector<std::string> essays;  // text files for the essay tasks; empty: generated prose
  std::string word_lists;           // folder (ReadWordPools); "": the built-in words
  std::string squad, hotpotqa;      // files for qa_1 and qa_2; "": left out
};
absl::StatusOr<Report> RunRuler(const RulerOptions& options, ComputePool& pool);

// LongBench v1 (tasks/longbench.h) from a folder with TASK.jsonl. Its rows are scored by
// longbench_score.py, so eval.choice.resume must name a file.
struct LongBenchOptions {
  TaskOptions task = {.eval = {.budgets = {"1/8"}, .context_len = 32768}};
  std::string data;
  std::vector<std::string> tasks;  // names; empty: those that the folder has
  int num_samples = 1000;          // of each task, the first so many
  // Tokens of a prompt beyond which it is cut; 0: context_len less the room that the benchmark
  // leaves a model of 4,096 tokens (596) for the answer and the chat template.
  int max_prompt_tokens = 0;
};
absl::StatusOr<Report> RunLongBench(const LongBenchOptions& options, ComputePool& pool);

// AIME (tasks/aime.h); the answer may take what the prompt leaves of context_len.
struct AimeTaskOptions {
  // One setting at a time: each has num_answers long answers in memory.
  TaskOptions task = {.eval = {.budgets = {"1/8"}, .context_len = 32768, .batch = 1},
                      .min_dense_score = 0};
  std::vector<std::string> data;  // files; each is a task of its name
  int num_answers = 8;            // to each problem
  int num_samples = 1000;         // problems of each file, the first so many
};
absl::StatusOr<Report> RunAime(const AimeTaskOptions& options, ComputePool& pool);

}  // namespace tokenbutler
