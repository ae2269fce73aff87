#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/queue.h"
#include "engine/chat_template/chat_template.h"
#include "server/served_model.h"

namespace tokenbutler {

// A prompt as it came in.
struct PromptInput {
  std::variant<std::string, std::vector<int32_t>, ChatInput> prompt;
  bool add_special_tokens = true;     // of a text
  bool parse_special_tokens = false;  // of a text

  bool needs_tokenization() const { return !std::holds_alternative<std::vector<int32_t>>(prompt); }
};

struct TokenizedPrompt {
  std::vector<int32_t> token_ids;
  std::string rendered_chat;  // what the chat template made; empty for other inputs
};

// Applies the chat template, tokenises, and checks what can only be checked then: INVALID_ARGUMENT
// for a text longer than could fit, a chat without template, a template's refusal; UNIMPLEMENTED
// for a chat whose template cannot be used. Slow: linear in the text.
absl::StatusOr<TokenizedPrompt> TokenizePrompt(const ServedModel& model, PromptInput input);

// A small pool for work that is too slow for a gRPC reaction and has no place on the engine
// thread: chat templates, tokenising and detokenising. Owns its threads.
class RequestPreparer {
 public:
  struct Options {
    int num_threads = 2;   // >= 1
    int max_queued = 256;  // jobs that wait; more are refused
  };

  explicit RequestPreparer(const Options& options);
  // Runs what is queued, then ends.
  ~RequestPreparer();
  RequestPreparer(const RequestPreparer&) = delete;
  RequestPreparer& operator=(const RequestPreparer&) = delete;

  // Runs `job` later on a thread of the pool; never waits. RESOURCE_EXHAUSTED with a retry delay
  // when max_queued jobs wait.
  absl::Status Run(std::function<void()> job);

 private:
  void Work();

  BoundedQueue<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace tokenbutler
