#include "tools/eval/tasks/task_sample.h"

#include "fmt/format.h"
#include "tools/eval/tasks/answer_metrics.h"

namespace tokenbutler {

std::string TaskSample::id() const { return fmt::format("{}/{}/{}", task, context_len, index); }

double ScoreAnswer(const TaskSample& sample, const std::string& answer) {
  switch (sample.metric) {
    case AnswerMetric::kAllStrings:
      return MatchAll(answer, sample.answers);
    case AnswerMetric::kAnyString:
      return MatchAny(answer, sample.answers);
    case AnswerMetric::kStartsWith:
      return MatchStart(answer, sample.answers);
    case AnswerMetric::kBoxedInteger:
      return MatchBoxedInteger(answer, sample.answers);
    case AnswerMetric::kScript:
      break;
  }
  return 0;
}

}  // namespace tokenbutler
