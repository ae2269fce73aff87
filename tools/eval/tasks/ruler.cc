#include "tools/eval/tasks/ruler.h"

#include <utility>

#include "absl/strings/str_join.h"
#include "tools/eval/tasks/ruler_needles.h"
#include "tools/eval/tasks/ruler_variables.h"
#include "tools/eval/tasks/ruler_words.h"

namespace tokenbutler {
namespace {

struct NamedNeedleTask {
  const char* name;
  NeedleTask task;
};

// Table 5 of the paper.
const std::vector<NamedNeedleTask>& NeedleTasks() {
  using Haystack = NeedleTask::Haystack;
  using Text = NeedleTask::Text;
  static const auto* const kTasks = new std::vector<NamedNeedleTask>{
      {"niah_single_1", {.haystack = Haystack::kNoise}},
      {"niah_single_2", {}},
      {"niah_single_3", {.values = Text::kUuids}},
      {"niah_multikey_1", {.num_keys = 4}},
      {"niah_multikey_2", {.haystack = Haystack::kNeedles}},
      {"niah_multikey_3",
       {.haystack = Haystack::kNeedles, .keys = Text::kUuids, .values = Text::kUuids}},
      {"niah_multivalue", {.num_values = 4}},
      {"niah_multiquery", {.num_queries = 4}}};
  return *kTasks;
}

const NeedleTask* FindNeedleTask(const std::string& name) {
  for (const NamedNeedleTask& task : NeedleTasks()) {
    if (task.name == name) return &task.task;
  }
  return nullptr;
}

absl::StatusOr<TaskSample> AboutFile(const TaskSample& sample,
                                     const std::optional<QuestionSet>& set, const char* dataset,
                                     const PromptFormat& format) {
  if (!set) return InvalidArgumentError("{} needs a local copy of {}", sample.task, dataset);
  return MakeQuestionSample(sample, *set, format);
}

}  // namespace

const std::vector<std::string>& RulerTaskNames() {
  static const auto* const kNames = [] {
    auto* names = new std::vector<std::string>;
    for (const NamedNeedleTask& task : NeedleTasks()) names->emplace_back(task.name);
    for (const char* other : {"vt", "cwe", "fwe", "qa_1", "qa_2"}) names->emplace_back(other);
    return names;
  }();
  return *kNames;
}

std::vector<std::string> AvailableRulerTasks(const RulerSources& sources) {
  std::vector<std::string> names;
  for (const std::string& name : RulerTaskNames()) {
    if (name == "qa_1" && !sources.squad) continue;
    if (name == "qa_2" && !sources.hotpot) continue;
    names.push_back(name);
  }
  return names;
}

bool UsesProse(const std::string& ruler_task) {
  const NeedleTask* task = FindNeedleTask(ruler_task);
  return task != nullptr && task->haystack == NeedleTask::Haystack::kEssay;
}

absl::StatusOr<TaskSample> MakeRulerSample(const TaskSample& sample, const RulerSources& sources,
                                           const PromptFormat& format) {
  if (const NeedleTask* task = FindNeedleTask(sample.task)) {
    return MakeNeedleSample(*task, sample, sources.words, sources.prose, format);
  }
  if (sample.task == "vt") return MakeVariableSample(sample, format);
  if (sample.task == "cwe") return MakeCommonWordsSample(sample, sources.words, format);
  if (sample.task == "fwe") return MakeFrequentWordsSample(sample, format);
  if (sample.task == "qa_1") return AboutFile(sample, sources.squad, "SQuAD", format);
  if (sample.task == "qa_2") return AboutFile(sample, sources.hotpot, "HotpotQA", format);
  return InvalidArgumentError("there is no RULER task {}, only {}", sample.task,
                              absl::StrJoin(RulerTaskNames(), ", "));
}

}  // namespace tokenbutler
