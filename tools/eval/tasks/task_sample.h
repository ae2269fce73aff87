#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tokenbutler {

// How an answer is compared with what was expected.
enum class AnswerMetric {
  kAllStrings,    // the share of the expected strings that the answer contains (RULER: match_all)
  kAnyString,     // 1 when it contains one of them (RULER: match_part)
  kStartsWith,    // 1 when the answer begins with one of them
  kBoxedInteger,  // 1 when its last \boxed{} holds the expected integer (AIME)
  kScript,        // another program's: longbench_score.py
};

// One question of a task. The prompt is context + question + answer_prefix: strict settings prefill
// the context densely and send the rest through the sparse path, the papers' setting prefills all.
// Everything follows from the task's options, `seed` and `index`.
struct TaskSample {
  std::string task;     // "vt"
  int context_len = 0;  // tokens of prompt and answer aimed at; 0: as long as it is
  int index = 0;        // within the task and length
  uint64_t seed = 0;

  std::string context;
  std::string question;
  std::string answer_prefix;  // the answer's beginning; goes behind a chat template's own text
  std::vector<std::string> answers;
  AnswerMetric metric = AnswerMetric::kAllStrings;

  int max_tokens = 0;      // generated at most
  double temperature = 0;  // 0: greedy
  double top_p = 1;
  int num_answers = 1;             // drawn; the score is their mean
  std::vector<std::string> stops;  // texts that end the answer, once it has a token
  bool has_chat_form = false;      // the benchmark gives it to an instruct model as a message

  // Scored token by token as what follows the prompt, beside the answer that is generated; "":
  // none.
  std::string forced_answer;
  // Byte ranges [begin, end) of `context` that one must have seen to answer; ascending.
  std::vector<std::pair<size_t, size_t>> evidence;
  // What a scoring script needs beside the answers: members of a JSON object, as text.
  std::string extra_json;

  // Unique within a run: "vt/4096/3".
  std::string id() const;
  std::string prompt() const { return context + question + answer_prefix; }
};

// [0, 1]. `metric` is not kScript; `sample.answers` is not empty.
double ScoreAnswer(const TaskSample& sample, const std::string& answer);

}  // namespace tokenbutler
