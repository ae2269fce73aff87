#pragma once

#include <string>

#include "engine/chat_template/chat_template.h"

namespace tokenbutler {

// "role: content\n" per message; refuses the role "villain" as templates do with raise_exception.
class FakeChatTemplate : public ChatTemplate {
 public:
  absl::StatusOr<RenderedPrompt> Render(const ChatInput& input) const override {
    RenderedPrompt prompt;
    for (const ChatMessage& message : input.messages) {
      if (message.role == "villain") return InvalidArgumentError("the template refused: villain");
      prompt.text += message.role + ": ";
      const size_t begin = prompt.text.size();
      prompt.text += message.content.value_or("");
      prompt.content_spans.emplace_back(begin, prompt.text.size());
      prompt.text += "\n";
    }
    if (input.add_generation_prompt) prompt.text += "assistant: ";
    return prompt;
  }
};

}  // namespace tokenbutler
