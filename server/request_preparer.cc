#include "server/request_preparer.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/status_details.h"
#include "engine/tokenizer/tokenizer.h"

namespace tokenbutler {
namespace {

absl::Status CheckTextBytes(const ServedModel& model, const char* field, size_t bytes) {
  if (bytes <= model.max_text_bytes) return absl::OkStatus();
  return WithField(
      InvalidArgumentError("{} is {} bytes long, at most {} fit the model's context of {} tokens",
                           field, bytes, model.max_text_bytes, model.max_model_len),
      field);
}

absl::StatusOr<TokenizedPrompt> TokenizeChat(const ServedModel& model, const ChatInput& chat) {
  if (model.chat_template == nullptr && !model.chat_template_error.empty()) {
    return WithField(
        UnimplementedError("chat is set, but the chat template of model '{}' cannot be "
                           "used ({}): use text or token_ids",
                           model.name, model.chat_template_error),
        "chat");
  }
  if (model.chat_template == nullptr) {
    return WithField(InvalidArgumentError("chat is set, but model '{}' has no chat template: use "
                                          "text or token_ids",
                                          model.name),
                     "chat");
  }
  size_t bytes = 0;
  for (const ChatMessage& message : chat.messages) {
    bytes += message.content.value_or("").size() + message.fields_json.size();
  }
  RETURN_IF_ERROR(CheckTextBytes(model, "chat", bytes));
  absl::StatusOr<RenderedPrompt> rendered = model.chat_template->Render(chat);
  if (!rendered.ok()) return WithField(Annotate(rendered.status(), "chat"), "chat");
  RETURN_IF_ERROR(CheckTextBytes(model, "chat", rendered->text.size()));
  Tokenizer::EncodeOptions options;
  options.add_special_tokens = false;  // the template wrote them
  options.parse_special = true;
  options.literal_spans = rendered->content_spans;
  TokenizedPrompt prompt;
  prompt.token_ids = model.tokenizer->Encode(rendered->text, options);
  prompt.rendered_chat = std::move(rendered->text);
  return prompt;
}

}  // namespace

absl::StatusOr<TokenizedPrompt> TokenizePrompt(const ServedModel& model, PromptInput input) {
  TokenizedPrompt prompt;
  if (auto* ids = std::get_if<std::vector<int32_t>>(&input.prompt)) {
    prompt.token_ids = std::move(*ids);
    return prompt;
  }
  if (const auto* chat = std::get_if<ChatInput>(&input.prompt)) return TokenizeChat(model, *chat);
  const auto& text = std::get<std::string>(input.prompt);
  RETURN_IF_ERROR(CheckTextBytes(model, "text", text.size()));
  Tokenizer::EncodeOptions options;
  options.add_special_tokens = input.add_special_tokens;
  options.parse_special = input.parse_special_tokens;
  prompt.token_ids = model.tokenizer->Encode(text, options);
  return prompt;
}

RequestPreparer::RequestPreparer(const Options& options)
    : queue_(static_cast<size_t>(std::max(1, options.max_queued))) {
  for (int i = 0; i < std::max(1, options.num_threads); ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

RequestPreparer::~RequestPreparer() {
  queue_.Close();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status RequestPreparer::Run(std::function<void()> job) {
  using PushResult = BoundedQueue<std::function<void()>>::PushResult;
  switch (queue_.TryPush(std::move(job))) {
    case PushResult::kOk:
      return absl::OkStatus();
    case PushResult::kClosed:
      return UnavailableError("the server is ending");
    case PushResult::kFull:
      break;
  }
  return WithRetryDelay(ResourceExhaustedError("{} requests wait to be tokenised, at most {} may",
                                               queue_.size(), queue_.capacity()),
                        absl::Seconds(1));
}

void RequestPreparer::Work() {
  // The queue is closed by the destructor, which is what ends the wait.
  while (true) {
    std::optional<std::function<void()>> job = queue_.Pop(absl::Seconds(60));
    if (job) {
      (*job)();
    } else if (queue_.closed()) {
      return;
    }
  }
}

}  // namespace tokenbutler
