#include "tools/eval/tasks/ruler_variables.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "fmt/format.h"
#include "tools/eval/tasks/fit_length.h"
#include "tools/eval/tasks/seeded_random.h"

namespace tokenbutler {
namespace {

constexpr int kNumHops = 4;
constexpr int kMaxTokens = 30;
constexpr int kExampleTokens = 500;
constexpr const char* kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

std::vector<std::string> VariableNames(int num_letters, SeededRandom* random) {
  std::vector<std::string> names;
  std::unordered_set<std::string> seen;
  while (static_cast<int>(names.size()) < kNumHops + 1) {
    std::string name;
    for (int i = 0; i < num_letters; ++i) name += static_cast<char>('A' + random->Below(26));
    if (seen.insert(name).second) names.push_back(std::move(name));
  }
  return names;
}

// One question with its text: names of `num_letters`, `num_noise` lines of noise.
TaskSample BuildOne(TaskSample sample, int num_letters, int num_noise, SeededRandom* random) {
  sample.answers = VariableNames(num_letters, random);
  const std::vector<std::string>& names = sample.answers;
  const std::string value = std::to_string(random->Between(10000, 99998));
  std::vector<std::string> chain = {fmt::format("VAR {} = {}", names[0], value)};
  // The space at the end is the benchmark's.
  for (int hop = 0; hop < kNumHops; ++hop) {
    chain.push_back(fmt::format("VAR {} = VAR {} ", names[hop + 1], names[hop]));
  }
  std::vector<std::string> lines(num_noise, kNoise);
  std::vector<int> places = random->Distinct(static_cast<int>(chain.size()), num_noise);
  std::sort(places.begin(), places.end());
  for (size_t i = 0; i < chain.size(); ++i) {
    lines.insert(lines.begin() + places[i] + static_cast<int>(i), chain[i]);
  }
  sample.context = fmt::format(
      "Memorize and track the chain(s) of variable assignment hidden in the following "
      "text.\n\n{}\n",
      absl::StrJoin(lines, "\n"));
  sample.question = fmt::format(
      "Question: Find all variables that are assigned the value {} in the text above.", value);
  sample.answer_prefix = fmt::format(
      " Answer: According to the chain(s) of variable assignment in the text above, {} variables "
      "are assigned the value {}, they are: ",
      names.size(), value);
  return sample;
}

}  // namespace

absl::StatusOr<TaskSample> MakeVariableSample(const TaskSample& sample,
                                              const PromptFormat& format) {
  TaskSample task = sample;
  task.metric = AnswerMetric::kAllStrings;
  task.max_tokens = kMaxTokens;
  task.has_chat_form = true;

  TaskSample example;
  example.task = sample.task;
  example.context_len = kExampleTokens;
  const auto build_example = [&](int num_noise) {
    SeededRandom random(sample.seed, "vt example", sample.index);
    return BuildOne(example, 3, num_noise, &random);
  };
  const auto fitted = FitLength(format, kNumHops + 1, build_example);
  if (!fitted.ok() && !absl::IsInvalidArgument(fitted.status())) return fitted.status();
  example = fitted.ok() ? *fitted : build_example(kNumHops + 1);
  const std::string solved = example.prompt() + " " + absl::StrJoin(example.answers, " ") + "\n\n";
  return FitLength(format, kNumHops + 1, [&](int num_noise) {
    SeededRandom random(sample.seed, sample.task, sample.index);
    TaskSample built = BuildOne(task, 5, num_noise, &random);
    built.context.insert(0, solved);
    return built;
  });
}

}  // namespace tokenbutler
