// A chat template and a conversation that may be anything: compiling and rendering end soon, with a
// text or an error, and the content spans are those of the text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/chat_template/chat_template.h"

namespace tokenbutler {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckSpans(const RenderedPrompt& prompt) {
  size_t last_end = 0;
  for (const auto& [begin, end] : prompt.content_spans) {
    Require(begin < end && begin >= last_end && end <= prompt.text.size());
    last_end = end;
  }
}

}  // namespace
}  // namespace tokenbutler

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokenbutler;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  // The text of the message, and of the further JSON, comes after a zero byte.
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string text(input.substr(std::min(end + 1, input.size())));
  TemplateOptions options;
  options.bos_token = "<s>";
  options.now = [] { return absl::UnixEpoch(); };
  options.time_zone = absl::UTCTimeZone();
  options.max_steps = 200'000;
  options.max_output_bytes = 1 << 20;
  const auto chat_template = ChatTemplate::Compile(std::string(input.substr(0, end)), options);
  if (!chat_template.ok()) return 0;

  ChatInput chat;
  chat.messages.push_back({"system", "You are <b>.", ""});
  chat.messages.push_back({"user", text, ""});
  chat.messages.push_back(
      {"assistant", std::nullopt, R"({"tool_calls": [{"name": "f", "x": [1]}]})"});
  chat.add_generation_prompt = true;
  const auto prompt = (*chat_template)->Render(chat);
  if (prompt.ok()) CheckSpans(*prompt);
  chat.tools_json = text;
  const auto with_tools = (*chat_template)->Render(chat);
  if (with_tools.ok()) CheckSpans(*with_tools);
  return 0;
}
