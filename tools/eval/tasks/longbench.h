#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "tools/eval/tasks/prompt_format.h"
#include "tools/eval/tasks/task_sample.h"

namespace tokenbutler {

// LongBench v1 (Bai et al., arXiv 2308.14508): 21 tasks with the benchmark's prompts, answer
// lengths and truncation in the middle. tools/eval/longbench_score.py has its metrics.
struct LongBenchTask {
  std::string name;
  std::string format;         // with {context} and {input}
  int max_tokens = 0;         // of an answer
  bool has_chat_form = true;  // few-shot and code tasks are given to chat models as plain text
  bool ends_at_newline = false;
};
const std::vector<LongBenchTask>& LongBenchTasks();
// INVALID_ARGUMENT listing the names.
absl::StatusOr<LongBenchTask> FindLongBenchTask(const std::string& name);

// One line of a task's file, as the benchmark publishes them.
struct LongBenchEntry {
  std::string id;  // _id
  std::string context, input;
  std::vector<std::string> answers;
  std::vector<std::string> all_classes;  // of classification tasks
  int length = 0;                        // words or characters, as published
};
// NOT_FOUND, or INVALID_ARGUMENT naming the entry and what it lacks.
absl::StatusOr<std::vector<LongBenchEntry>> ReadLongBench(const std::string& path);

// The sample of entry number `index`. A prompt of more than `max_prompt_tokens` (before a chat
// template) is cut in the middle: its first and last halves of so many tokens stay. The question is
// what stands behind the context in the task's format.
absl::StatusOr<TaskSample> MakeLongBenchSample(const LongBenchTask& task,
                                               const LongBenchEntry& entry, int index,
                                               int max_prompt_tokens, const PromptFormat& format);

}  // namespace tokenbutler
