#include "tools/eval/tasks/prompt_format.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"

namespace tokenbutler {

// The text that is tokenised, and where the sample's context stands in it.
struct PromptFormat::Rendered {
  std::string text;
  size_t context_begin = 0, context_end = 0;  // bytes
  std::vector<std::pair<size_t, size_t>> content_spans = {};
  bool is_chat = false;
};

absl::StatusOr<PromptFormat::Rendered> PromptFormat::Render(const TaskSample& sample) const {
  if (use_ == ChatUse::kAlways && chat_ == nullptr) {
    return InvalidArgumentError("the model has no chat template that can be used");
  }
  const bool as_chat = use_ == ChatUse::kAlways ||
                       (use_ == ChatUse::kAsBenchmark && sample.has_chat_form && chat_ != nullptr);
  if (!as_chat) return Rendered{.text = sample.prompt(), .context_end = sample.context.size()};

  const std::string message = sample.context + sample.question;
  ChatInput input;
  input.messages.push_back({.role = "user", .content = message, .fields_json = ""});
  input.add_generation_prompt = true;
  ASSIGN_OR_RETURN(RenderedPrompt prompt, chat_->Render(input));
  // Templates often trim a message.
  const std::string trimmed(absl::StripAsciiWhitespace(message));
  const size_t at = prompt.text.find(trimmed);
  if (at == std::string::npos) {
    return UnimplementedError(
        "the chat template changes the message: sample {} cannot be given "
        "to it as it is",
        sample.id());
  }
  const size_t before = message.find(trimmed);
  Rendered rendered{.text = std::move(prompt.text) + sample.answer_prefix,
                    .context_begin = at,
                    .content_spans = std::move(prompt.content_spans),
                    .is_chat = true};
  rendered.context_begin -= std::min(before, at);
  rendered.context_end = rendered.context_begin + sample.context.size();
  return rendered;
}

std::vector<int32_t> PromptFormat::EncodeFirst(const Rendered& rendered, size_t num_bytes) const {
  const std::string_view text = std::string_view(rendered.text).substr(0, num_bytes);
  if (!rendered.is_chat) return tokenizer_.Encode(text, {});
  std::vector<std::pair<size_t, size_t>> spans;
  for (const auto& [begin, end] : rendered.content_spans) {
    if (begin < text.size()) spans.emplace_back(begin, std::min(end, text.size()));
  }
  // The template wrote the special tokens.
  return tokenizer_.Encode(
      text, {.add_special_tokens = false, .parse_special = true, .literal_spans = spans});
}

// How many of the text's tokens stand wholly before a byte: those that its beginning alone has too.
int PromptFormat::TokensBefore(const Rendered& rendered, const std::vector<int32_t>& all,
                               size_t num_bytes) const {
  const std::vector<int32_t> first = EncodeFirst(rendered, num_bytes);
  const auto differs = std::mismatch(first.begin(), first.end(), all.begin(), all.end());
  return static_cast<int>(differs.first - first.begin());
}

absl::StatusOr<TaskPrompt> PromptFormat::Format(const TaskSample& sample) const {
  ASSIGN_OR_RETURN(Rendered rendered, Render(sample));
  const std::vector<int32_t> all = EncodeFirst(rendered, rendered.text.size());
  const int split = TokensBefore(rendered, all, rendered.context_end);
  TaskPrompt prompt;
  prompt.context.assign(all.begin(), all.begin() + split);
  prompt.question.assign(all.begin() + split, all.end());
  if (prompt.context.empty() || prompt.question.empty()) {
    return InvalidArgumentError(
        "sample {} has {} tokens of context and {} of question, must have "
        "at least one of each",
        sample.id(), prompt.context.size(), prompt.question.size());
  }
  for (const auto& [begin, end] : sample.evidence) {
    prompt.evidence.emplace_back(TokensBefore(rendered, all, rendered.context_begin + begin),
                                 TokensBefore(rendered, all, rendered.context_begin + end));
  }
  if (!sample.forced_answer.empty()) {
    const size_t prompt_bytes = rendered.text.size();
    rendered.text += sample.forced_answer;
    const std::vector<int32_t> with_answer = EncodeFirst(rendered, rendered.text.size());
    const int before = TokensBefore(rendered, with_answer, prompt_bytes);
    prompt.forced_answer.assign(with_answer.begin() + before, with_answer.end());
  }
  return prompt;
}

absl::StatusOr<int> PromptFormat::CountTokens(const TaskSample& sample) const {
  ASSIGN_OR_RETURN(const Rendered rendered, Render(sample));
  return static_cast<int>(EncodeFirst(rendered, rendered.text.size()).size());
}

std::vector<int32_t> PromptFormat::Encode(const std::string& text) const {
  return tokenizer_.Encode(text, {.add_special_tokens = false});
}

}  // namespace tokenbutler
