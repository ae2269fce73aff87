#include "tools/eval/task_evaluation.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "engine/model_text.h"
#include "tools/eval/progress.h"
#include "tools/eval/task_rows.h"
#include "tools/scoring/checkpoint.h"

namespace tokenbutler {
namespace {

using Json = Report::Json;

struct AskedSample {
  TaskSample sample;
  TaskPrompt prompt;
};

// The samples of one task, and what the runner makes of them.
struct AskedTask {
  std::string name;
  std::vector<AskedSample> samples;
};

absl::StatusOr<std::vector<AskedTask>> Ask(const TaskSet& tasks, const PromptFormat& format) {
  ASSIGN_OR_RETURN(std::vector<TaskSample> samples, tasks.make_samples(format));
  if (samples.empty()) return InvalidArgumentError("{} has no samples", tasks.evaluation);
  std::vector<AskedTask> asked;
  for (TaskSample& sample : samples) {
    ASSIGN_OR_RETURN(TaskPrompt prompt, format.Format(sample));
    if (asked.empty() || asked.back().name != sample.task) {
      asked.push_back({.name = sample.task, .samples = {}});
    }
    asked.back().samples.push_back({std::move(sample), std::move(prompt)});
  }
  return asked;
}

// Room for the longest question with its answer.
void FitSession(const std::vector<AskedTask>& tasks, EvalOptions* options) {
  options->forked_tokens = 1;
  options->num_completions = 1;
  for (const AskedTask& task : tasks) {
    for (const AskedSample& asked : task.samples) {
      const int answer =
          std::max(static_cast<int>(asked.prompt.forced_answer.size()), asked.sample.max_tokens);
      options->forked_tokens =
          std::max(options->forked_tokens, static_cast<int>(asked.prompt.question.size()) + answer);
      options->num_completions = std::max(options->num_completions, asked.sample.num_answers);
    }
  }
}

absl::Status RunTask(const AskedTask& task, QuestionPath question, SampleRunner* runner) {
  std::unordered_map<std::string, const AskedSample*> by_id;
  SampleRunner::Task run{.name = task.name, .question = question, .samples = {}, .row = nullptr};
  for (const AskedSample& asked : task.samples) {
    run.samples.push_back(RunnerSample(asked.sample, asked.prompt));
    by_id[run.samples.back().id] = &asked;
  }
  run.row = [&by_id](const Sample& sample, const SampleOutcome& outcome) {
    const AskedSample& asked = *by_id.at(sample.id);
    return TaskRow(asked.sample, asked.prompt, outcome);
  };
  return runner->Run(run);
}

// The rows of this run's samples of a task under a setting.
std::vector<Json> RowsOf(const Checkpoint& checkpoint, const AskedTask& task, QuestionPath question,
                         const Json& job_key) {
  Json key = {{"task", task.name}, {"question", std::string(QuestionPathName(question))}};
  key.update(job_key);
  std::vector<Json> rows;
  for (Json& row : checkpoint.FindAll(key)) {
    const bool is_ours =
        std::any_of(task.samples.begin(), task.samples.end(),
                    [&](const AskedSample& asked) { return row["sample"] == asked.sample.id(); });
    if (is_ours) rows.push_back(std::move(row));
  }
  return rows;
}

// Tables from the rows of all tasks.
class TaskTables {
 public:
  TaskTables(const TaskOptions& options, const std::vector<AskedTask>& tasks,
             const std::vector<TextJob>& jobs, const Checkpoint& checkpoint)
      : options_(options), tasks_(tasks), jobs_(jobs), checkpoint_(checkpoint) {}

  void AddTo(Report* report) const {
    std::vector<std::string> too_hard;
    std::vector<const AskedTask*> averaged;
    for (const AskedTask& task : tasks_) {
      AddRows(task.name, {&task}, report);
      if (IsTooHard(task)) {
        too_hard.push_back(task.name);
      } else {
        averaged.push_back(&task);
      }
    }
    report->SetFact("too_hard_for_the_model", too_hard);
    if (tasks_.size() > 1) AddRows("average", averaged, report);
  }

 private:
  // Of some tasks together, a row for each setting.
  void AddRows(const std::string& name, const std::vector<const AskedTask*>& tasks,
               Report* report) const {
    const TextJob* dense = FindJob("dense", 0);
    for (const TextJob& job : jobs_) {
      const ComparedRows rows = {.own = Rows(tasks, &job),
                                 .dense = Rows(tasks, dense),
                                 .exact = Rows(tasks, FindJob("exact", job.params.token_budget))};
      if (!rows.own.empty()) report->AddRow(TaskSummary(name, options_.question, job, rows));
    }
  }
  const TextJob* FindJob(const std::string& label, int token_budget) const {
    for (const TextJob& job : jobs_) {
      if (job.label == label && job.params.token_budget == token_budget) return &job;
    }
    return nullptr;
  }
  // None of a job that is not there.
  std::vector<Json> Rows(const std::vector<const AskedTask*>& tasks, const TextJob* job) const {
    std::vector<Json> rows;
    for (const AskedTask* task : tasks) {
      if (job == nullptr) continue;
      for (Json& row : RowsOf(checkpoint_, *task, options_.question, job->Key())) {
        rows.push_back(std::move(row));
      }
    }
    return rows;
  }
  // Whether dense attention was tried and is not good enough.
  bool IsTooHard(const AskedTask& task) const {
    double sum = 0;
    const std::vector<Json> rows = Rows({&task}, FindJob("dense", 0));
    for (const Json& row : rows) {
      if (row["score"].is_null()) return false;
      sum += row["score"].get<double>();
    }
    return !rows.empty() && sum < options_.min_dense_score * static_cast<double>(rows.size());
  }

  const TaskOptions& options_;
  const std::vector<AskedTask>& tasks_;
  const std::vector<TextJob>& jobs_;
  const Checkpoint& checkpoint_;
};

}  // namespace

std::string_view ChatUseName(ChatUse use) {
  switch (use) {
    case ChatUse::kAsBenchmark:
      return "benchmark";
    case ChatUse::kAlways:
      return "always";
    case ChatUse::kNever:
      break;
  }
  return "never";
}

absl::StatusOr<ChatUse> ParseChatUse(std::string_view name) {
  for (const ChatUse use : {ChatUse::kAsBenchmark, ChatUse::kAlways, ChatUse::kNever}) {
    if (name == ChatUseName(use)) return use;
  }
  return InvalidArgumentError(
      "the chat template's use is \"{}\", must be benchmark, always or never", name);
}

absl::StatusOr<Report> RunTasks(const TaskOptions& options, const TaskSet& tasks,
                                ComputePool& pool) {
  ASSIGN_OR_RETURN(const ModelText text, LoadModelText(options.eval.model));
  if (!text.chat_template_error.empty()) {
    fmt::print(stderr, "the model's chat template cannot be used: {}\n", text.chat_template_error);
  }
  const PromptFormat format(*text.tokenizer, text.chat_template.get(), options.chat);
  ASSIGN_OR_RETURN(const std::vector<AskedTask> asked, Ask(tasks, format));
  EvalOptions eval = options.eval;
  std::vector<std::string>& settings = eval.choice.settings;
  for (const char* reference : {"exact", "dense"}) {
    if (std::find(settings.begin(), settings.end(), reference) == settings.end()) {
      settings.insert(settings.begin(), reference);
    }
  }
  FitSession(asked, &eval);
  ASSIGN_OR_RETURN(const std::unique_ptr<EvalSession> session, EvalSession::Create(eval, pool));

  Json facts = session->Facts(tasks.evaluation);
  facts["seed"] = options.seed;
  facts["chat_template"] =
      std::string(text.chat_template == nullptr ? "none" : ChatUseName(options.chat));
  facts.update(tasks.facts);
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(eval.choice.resume, facts));
  Progress progress = Progress::OnStderr(tasks.evaluation);
  SampleRunner runner(*session, checkpoint, progress);
  for (const AskedTask& task : asked) {
    RETURN_IF_ERROR(RunTask(task, options.question, &runner));
  }
  progress.End();

  Report report = session->NewReport(tasks.evaluation, facts);
  report.SetFact("question", std::string(QuestionPathName(options.question)));
  report.SetFact("intervals", "95 %, 10000 bootstrap resamples of the samples, seed 1");
  report.SetFact("min_dense_score", options.min_dense_score);
  TaskTables(options, asked, session->jobs(), checkpoint).AddTo(&report);
  return report;
}

}  // namespace tokenbutler
