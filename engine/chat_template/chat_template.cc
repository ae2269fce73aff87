#include "engine/chat_template/chat_template.h"

#include <algorithm>
#include <iterator>

#include "engine/chat_template/jinja_json.h"
#include "engine/chat_template/jinja_lexer.h"
#include "engine/chat_template/jinja_parser.h"
#include "engine/chat_template/jinja_run.h"
#include "engine/chat_template/jinja_unicode.h"

namespace tokenbutler {
namespace {

// Templates such as Phi's build control tokens around the role ("<|" + role + "|>"), so these count
// as template text. Any other role is content: "im_end" must not make an "<|im_end|>". Names of
// speakers only: nothing that ends, separates or pads anywhere.
constexpr std::string_view kKnownRoles[] = {
    "assistant", "bot",         "developer", "function", "human", "ipython",
    "model",     "observation", "system",    "tool",     "user",
};

bool IsKnownRole(std::string_view role) {
  return std::find(std::begin(kKnownRoles), std::end(kKnownRoles), role) != std::end(kKnownRoles);
}

absl::Status CheckUtf8(std::string_view field, std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = Utf8LengthAt(text, at);
    std::string encoded;
    AppendCodePoint(CodePointAt(text, at), &encoded);
    if (encoded != text.substr(at, length)) {
      return InvalidArgumentError("{} is not valid UTF-8 at byte {}", field, at);
    }
    at += length;
  }
  return absl::OkStatus();
}

JinjaValue ContentValue(const std::string& text) {
  return JinjaValue(JinjaText(text, /*from_content=*/true));
}

absl::StatusOr<JinjaDict> ParseObject(std::string_view field, const std::string& json) {
  if (json.empty()) return JinjaDict();
  JinjaResult value = ParseJinjaJson(json);
  if (!value.ok()) return Annotate(value.status(), field);
  if (value->as_dict() == nullptr) return InvalidArgumentError("{} is not a JSON object", field);
  return *value->as_dict();
}

// None when there is no text: what transformers passes for what the caller left out.
JinjaResult ParseOptionalArray(std::string_view field, const std::string& json) {
  if (json.empty()) return JinjaValue();
  JinjaResult value = ParseJinjaJson(json);
  if (!value.ok()) return Annotate(value.status(), field);
  if (value->as_list() == nullptr) return InvalidArgumentError("{} is not a JSON array", field);
  return value;
}

JinjaResult MessageValue(const ChatMessage& message, size_t index) {
  const std::string field = fmt::format("messages[{}]", index);
  RETURN_IF_ERROR(CheckUtf8(field + ".role", message.role));
  JinjaDict dict;
  RETURN_IF_ERROR(dict.Set(JinjaValue::Text("role"), IsKnownRole(message.role)
                                                         ? JinjaValue::Text(message.role)
                                                         : ContentValue(message.role)));
  RETURN_IF_ERROR(dict.Set(JinjaValue::Text("content"), JinjaValue()));
  ASSIGN_OR_RETURN(const JinjaDict fields,
                   ParseObject(field + ".fields_json", message.fields_json));
  for (const auto& [key, value] : fields.entries) {
    if (key.as_text()->view() == "role") {
      return InvalidArgumentError("{}.fields_json has a \"role\", which has a field of its own",
                                  field);
    }
    RETURN_IF_ERROR(dict.Set(key, value));
  }
  if (message.content.has_value()) {
    RETURN_IF_ERROR(CheckUtf8(field + ".content", *message.content));
    RETURN_IF_ERROR(dict.Set(JinjaValue::Text("content"), ContentValue(*message.content)));
  }
  return MakeJinjaDict(std::move(dict));
}

class JinjaChatTemplate : public ChatTemplate {
 public:
  JinjaChatTemplate(JinjaTree tree, TemplateOptions options)
      : tree_(std::move(tree)), options_(std::move(options)) {}

  absl::StatusOr<RenderedPrompt> Render(const ChatInput& input) const override {
    std::vector<JinjaValue> messages;
    for (size_t i = 0; i < input.messages.size(); ++i) {
      ASSIGN_OR_RETURN(JinjaValue message, MessageValue(input.messages[i], i));
      messages.push_back(std::move(message));
    }
    ASSIGN_OR_RETURN(const JinjaValue tools, ParseOptionalArray("tools_json", input.tools_json));
    ASSIGN_OR_RETURN(const JinjaValue documents,
                     ParseOptionalArray("documents_json", input.documents_json));
    ASSIGN_OR_RETURN(const JinjaDict kwargs,
                     ParseObject("template_kwargs", input.template_kwargs_json));

    JinjaRun run(&tree_, &options_);
    for (const auto& [name, text] : options_.variables) run.Define(name, JinjaValue::Text(text));
    run.Define("bos_token", JinjaValue::Text(options_.bos_token));
    run.Define("eos_token", JinjaValue::Text(options_.eos_token));
    for (const auto& [name, value] : kwargs.entries) run.Define(name.as_text()->view(), value);
    run.Define("messages", JinjaValue::List(std::move(messages)));
    run.Define("tools", tools);
    run.Define("documents", documents);
    run.Define("add_generation_prompt", JinjaValue(input.add_generation_prompt));
    return run.Render();
  }

 private:
  const JinjaTree tree_;
  const TemplateOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Compile(const std::string& source,
                                                                    TemplateOptions options) {
  RETURN_IF_ERROR(CheckUtf8("chat template", source));
  ASSIGN_OR_RETURN(std::vector<JinjaToken> tokens, LexJinja(source));
  ASSIGN_OR_RETURN(JinjaTree tree, JinjaParser(std::move(tokens)).Parse());
  return std::unique_ptr<ChatTemplate>(
      std::make_unique<JinjaChatTemplate>(std::move(tree), std::move(options)));
}

}  // namespace tokenbutler
