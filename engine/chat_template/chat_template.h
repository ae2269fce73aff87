#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace tokenbutler {

struct TemplateOptions {
  std::string bos_token;  // text of the tokens, as the template's variables of these names
  std::string eos_token;
  // More variables every rendering sees (unk_token, pad_token ...): name and text.
  std::vector<std::pair<std::string, std::string>> variables;
  // What strftime_now() reads, in which zone.
  std::function<absl::Time()> now = absl::Now;
  absl::TimeZone time_zone = absl::LocalTimeZone();
  // Bounds on one rendering. A step is about one evaluated expression, statement or copied
  // 64 bytes of text; the default takes some seconds at most.
  int64_t max_steps = 20'000'000;
  size_t max_output_bytes = size_t{64} << 20;
};

struct ChatMessage {
  // Who speaks. The well-known names (assistant, bot, developer, function, human, ipython, model,
  // observation, system, tool, user) count as the template's own text, since some templates make a
  // control token of "<|", the role and "|>". Any other role is content, so that a token made of it
  // stays text.
  std::string role;
  std::optional<std::string> content;  // unset: the message has content None (or see fields_json)
  // Further fields as a JSON object (tool_calls, name, reasoning ...); empty for none. "content"
  // here stands in for an unset `content`: null or a list of parts, say.
  std::string fields_json;
};

struct ChatInput {
  std::vector<ChatMessage> messages;
  std::string tools_json;      // JSON array; empty: the template sees none
  std::string documents_json;  // the same, for templates that take documents
  bool add_generation_prompt = false;
  std::string template_kwargs_json;  // JSON object of further variables; empty for none
};

struct RenderedPrompt {
  std::string text;
  // Byte ranges [begin, end) of `text`, ascending and disjoint, that came out of the input (message
  // fields but for well-known roles, tools, keyword arguments) and not out of the template: what
  // looks like a control token there is text. Goes to Tokenizer::EncodeOptions::literal_spans.
  std::vector<std::pair<size_t, size_t>> content_spans;
};

// A model's own chat template: Jinja as Hugging Face transformers sets it up (sandboxed, immutable,
// trim_blocks, lstrip_blocks, loop controls, `generation` blocks, tojson without HTML escapes,
// raise_exception, strftime_now), run by an interpreter of our own. The text of messages is data
// and never read as template. Immutable after Compile; Render may be called from any threads at
// once.
class ChatTemplate {
 public:
  // INVALID_ARGUMENT for a syntax error and UNIMPLEMENTED for a construct, filter or test that is
  // not known; both name it and the line.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Compile(const std::string& source,
                                                               TemplateOptions options);
  virtual ~ChatTemplate() = default;

  // INVALID_ARGUMENT: the template refused the conversation (raise_exception: its message), or an
  // expression failed (construct and line), or a *_json field is not the JSON it should be.
  // RESOURCE_EXHAUSTED: a bound of TemplateOptions was passed.
  virtual absl::StatusOr<RenderedPrompt> Render(const ChatInput& input) const = 0;
};

}  // namespace tokenbutler
