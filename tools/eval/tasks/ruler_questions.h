#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "tools/eval/tasks/prompt_format.h"
#include "tools/eval/tasks/task_sample.h"

namespace tokenbutler {

// Questions about documents, from a local copy of a dataset.
struct QuestionSet {
  struct Question {
    std::string text;
    std::vector<std::string> answers;    // any of them will do; not empty
    std::vector<int> documents;          // that answer it; indices
    std::vector<int> related_documents;  // fillers to take first: of the same article
  };
  std::vector<std::string> documents = {};  // none twice
  std::vector<Question> questions = {};     // in the file's order
};

// SQuAD 2.0's JSON (data / paragraphs / context, qas), without its unanswerable questions.
// NOT_FOUND, or INVALID_ARGUMENT naming what is missing.
absl::StatusOr<QuestionSet> ReadSquad(const std::string& path);
// HotpotQA's JSON: a list of question, answer, context ([title, [sentences]] each); the distractor
// setting's files. Errors as above.
absl::StatusOr<QuestionSet> ReadHotpotQa(const std::string& path);

// RULER's qa_1 and qa_2 (arXiv 2404.06654, section 3.4): question number `sample.index` of the set,
// its documents among as many others as fit. OUT_OF_RANGE is INVALID_ARGUMENT: the set has too few
// questions.
absl::StatusOr<TaskSample> MakeQuestionSample(const TaskSample& sample, const QuestionSet& set,
                                              const PromptFormat& format);

}  // namespace tokenbutler
