#include "tools/eval/tasks/aime.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "nlohmann/json.hpp"
#include "tools/eval/tasks/answer_metrics.h"
#include "tools/eval/tasks/json_lines.h"

namespace tokenbutler {
namespace {

using Json = nlohmann::json;

// A member as text, its name in any case; nullopt when there is none that is text or a number.
std::optional<std::string> Find(const Json& entry, std::initializer_list<const char*> names) {
  for (const auto& [key, value] : entry.items()) {
    const std::string lower = absl::AsciiStrToLower(key);
    for (const char* name : names) {
      if (lower != name) continue;
      if (value.is_string()) return value.get<std::string>();
      if (value.is_number()) return value.dump();
    }
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::vector<AimeProblem>> ReadAime(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<Json> entries, ReadJsonLines(path));
  std::vector<AimeProblem> problems;
  for (const Json& entry : entries) {
    const std::string number = std::to_string(problems.size() + 1);
    std::optional<std::string> text = Find(entry, {"problem", "question"});
    std::optional<std::string> answer = Find(entry, {"answer"});
    if (!text || !answer) {
      return InvalidArgumentError("{}: entry {} has no {}", path, number,
                                  text ? "answer" : "problem or question");
    }
    if (!ParseBoxedInteger(*answer)) {
      return InvalidArgumentError("{}: the answer of entry {} is {}, must be an integer", path,
                                  number, *answer);
    }
    problems.push_back({.id = Find(entry, {"id", "problem_idx"}).value_or(number),
                        .text = *std::move(text),
                        .answer = *std::move(answer)});
  }
  return problems;
}

TaskSample MakeAimeSample(const std::string& task, const AimeProblem& problem, int index,
                          const AimeOptions& options) {
  TaskSample sample;
  sample.task = task;
  sample.index = index;
  sample.seed = options.seed;
  sample.context = problem.text;
  sample.question = "\n\nPlease reason step by step, and put your final answer within \\boxed{}.";
  sample.answers = {problem.answer};
  sample.metric = AnswerMetric::kBoxedInteger;
  sample.max_tokens = options.max_tokens;
  sample.temperature = 0.6;
  sample.top_p = 0.95;
  sample.num_answers = options.num_answers;
  sample.has_chat_form = true;
  sample.extra_json = Json({{"problem", problem.id}}).dump();
  return sample;
}

}  // namespace tokenbutler
