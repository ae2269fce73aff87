#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/chat_template/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "tools/eval/tasks/task_sample.h"

namespace tokenbutler {

// When a sample goes to the model as a user's message.
enum class ChatUse { kAsBenchmark, kAlways, kNever };

// A sample as the model sees it: the tokens of `context` then those of `question` are what the
// whole text makes, cut where the sample's context ends.
struct TaskPrompt {
  std::vector<int32_t> context;               // not empty
  std::vector<int32_t> question;              // not empty
  std::vector<int32_t> forced_answer;         // what TaskSample::forced_answer adds
  std::vector<std::pair<int, int>> evidence;  // of TaskSample, in tokens [begin, end)

  int num_tokens() const { return static_cast<int>(context.size() + question.size()); }
};

// Turns samples into tokens, with the model's chat template where that is wanted.
class PromptFormat {
 public:
  // `chat` may be null when the model has none: then kAlways is an error and kAsBenchmark means
  // never. Both must outlive this.
  PromptFormat(const Tokenizer& tokenizer, const ChatTemplate* chat, ChatUse use)
      : tokenizer_(tokenizer), chat_(chat), use_(use) {}

  // INVALID_ARGUMENT when context or question have no token, or there is no template for kAlways;
  // UNIMPLEMENTED when the template changes the message; errors of ChatTemplate::Render.
  absl::StatusOr<TaskPrompt> Format(const TaskSample& sample) const;

  // Tokens of the whole prompt. Errors of Format.
  absl::StatusOr<int> CountTokens(const TaskSample& sample) const;

  // Tokens of a piece of text alone.
  std::vector<int32_t> Encode(const std::string& text) const;
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  struct Rendered;
  absl::StatusOr<Rendered> Render(const TaskSample& sample) const;
  std::vector<int32_t> EncodeFirst(const Rendered& rendered, size_t num_bytes) const;
  int TokensBefore(const Rendered& rendered, const std::vector<int32_t>& all,
                   size_t num_bytes) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;
  ChatUse use_;
};

}  // namespace tokenbutler
