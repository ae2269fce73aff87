#include "tools/eval/question_tasks.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "tools/eval/tasks/aime.h"
#include "tools/eval/tasks/coref.h"
#include "tools/eval/tasks/longbench.h"
#include "tools/eval/tasks/ruler.h"

namespace tokenbutler {
namespace {

using Json = Report::Json;

// With fewer words, an essay's needles would stand near each other at every depth.
constexpr int kProseWords = 20000;
// Of 4,096 tokens, LongBench gives a prompt 3,500.
constexpr int kLongBenchRoom = 596;

TaskSample Blank(const std::string& task, int index, const TaskOptions& options) {
  TaskSample sample;
  sample.task = task;
  sample.context_len = options.eval.context_len;
  sample.index = index;
  sample.seed = options.seed;
  return sample;
}

absl::StatusOr<RulerSources> ReadSources(const RulerOptions& o) {
  RulerSources sources;
  sources.words = BuiltInWords();
  if (!o.word_lists.empty()) {
    ASSIGN_OR_RETURN(sources.words, ReadWordPools(o.word_lists));
  }
  sources.prose = GeneratedProse(o.task.seed, kProseWords);
  if (!o.essays.empty()) {
    ASSIGN_OR_RETURN(sources.prose, ReadProse(o.essays));
  }
  if (!o.squad.empty()) {
    ASSIGN_OR_RETURN(sources.squad, ReadSquad(o.squad));
  }
  if (!o.hotpotqa.empty()) {
    ASSIGN_OR_RETURN(sources.hotpot, ReadHotpotQa(o.hotpotqa));
  }
  return sources;
}

std::string FileName(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// The tasks whose files are in a folder, in the benchmark's order.
std::vector<std::string> LongBenchTasksIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const LongBenchTask& task : LongBenchTasks()) {
    if (std::filesystem::exists(folder + "/" + task.name + ".jsonl", error)) {
      names.push_back(task.name);
    }
  }
  return names;
}

absl::StatusOr<std::vector<TaskSample>> LongBenchSamples(const LongBenchOptions& o,
                                                         int max_prompt_tokens,
                                                         const PromptFormat& format) {
  std::vector<TaskSample> samples;
  for (const std::string& name : o.tasks.empty() ? LongBenchTasksIn(o.data) : o.tasks) {
    ASSIGN_OR_RETURN(const LongBenchTask task, FindLongBenchTask(name));
    ASSIGN_OR_RETURN(const std::vector<LongBenchEntry> entries,
                     ReadLongBench(o.data + "/" + name + ".jsonl"));
    const int count = std::min(o.num_samples, static_cast<int>(entries.size()));
    for (int i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(samples.emplace_back(),
                       MakeLongBenchSample(task, entries[i], i, max_prompt_tokens, format));
      samples.back().seed = o.task.seed;
    }
  }
  return samples;
}

absl::StatusOr<std::vector<TaskSample>> AimeSamples(const AimeTaskOptions& o,
                                                    const PromptFormat& format) {
  std::vector<TaskSample> samples;
  for (const std::string& path : o.data) {
    const std::string name = std::filesystem::path(path).stem().string();
    ASSIGN_OR_RETURN(const std::vector<AimeProblem> problems, ReadAime(path));
    const int count = std::min(o.num_samples, static_cast<int>(problems.size()));
    for (int i = 0; i < count; ++i) {
      TaskSample sample =
          MakeAimeSample(name, problems[i], i, {.num_answers = o.num_answers, .seed = o.task.seed});
      ASSIGN_OR_RETURN(const int prompt_tokens, format.CountTokens(sample));
      sample.context_len = o.task.eval.context_len;
      sample.max_tokens = sample.context_len - prompt_tokens;
      if (sample.max_tokens < 1) {
        return InvalidArgumentError("{}: problem {} has {} tokens, context_len is {}", path,
                                    problems[i].id, prompt_tokens, sample.context_len);
      }
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

}  // namespace

absl::StatusOr<Report> RunCoref(const CorefOptions& o, ComputePool& pool) {
  const auto make = [&](const PromptFormat& format) -> absl::StatusOr<std::vector<TaskSample>> {
    std::vector<TaskSample> samples;
    for (int i = 0; i < o.num_samples; ++i) {
      ASSIGN_OR_RETURN(samples.emplace_back(), MakeCorefSample(Blank("coref", i, o.task), format));
    }
    return samples;
  };
  return RunTasks(o.task, {.evaluation = "coref", .facts = Json::object(), .make_samples = make},
                  pool);
}

absl::StatusOr<Report> RunRuler(const RulerOptions& o, ComputePool& pool) {
  ASSIGN_OR_RETURN(const RulerSources sources, ReadSources(o));
  const std::vector<std::string> names = o.tasks.empty() ? AvailableRulerTasks(sources) : o.tasks;
  const auto make = [&](const PromptFormat& format) -> absl::StatusOr<std::vector<TaskSample>> {
    std::vector<TaskSample> samples;
    for (const std::string& name : names) {
      for (int i = 0; i < o.num_samples; ++i) {
        ASSIGN_OR_RETURN(samples.emplace_back(),
                         MakeRulerSample(Blank(name, i, o.task), sources, format));
      }
    }
    return samples;
  };
  const Json facts = {{"words", sources.words.source},
                      {"essay", sources.prose.source},
                      {"squad", FileName(o.squad)},
                      {"hotpotqa", FileName(o.hotpotqa)}};
  return RunTasks(o.task, {.evaluation = "ruler", .facts = facts, .make_samples = make}, pool);
}

absl::StatusOr<Report> RunLongBench(const LongBenchOptions& o, ComputePool& pool) {
  if (o.task.eval.choice.resume.empty()) {
    return InvalidArgumentError(
        "longbench needs --resume FILE: longbench_score.py reads the answers there");
  }
  const int max_prompt_tokens =
      o.max_prompt_tokens > 0 ? o.max_prompt_tokens : o.task.eval.context_len - kLongBenchRoom;
  const auto make = [&](const PromptFormat& format) {
    return LongBenchSamples(o, max_prompt_tokens, format);
  };
  const Json facts = {{"max_prompt_tokens", max_prompt_tokens}};
  return RunTasks(o.task, {.evaluation = "longbench", .facts = facts, .make_samples = make}, pool);
}

absl::StatusOr<Report> RunAime(const AimeTaskOptions& o, ComputePool& pool) {
  const auto make = [&](const PromptFormat& format) { return AimeSamples(o, format); };
  const Json facts = {{"answers_per_problem", o.num_answers}};
  return RunTasks(o.task, {.evaluation = "aime", .facts = facts, .make_samples = make}, pool);
}

}  // namespace tokenbutler
