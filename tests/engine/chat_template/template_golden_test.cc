// Renders what tools/golden/make_template_goldens.py rendered with Python's jinja2.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/chat_template/chat_template.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {
namespace {

using Json = nlohmann::ordered_json;

Json ReadGolden(const std::filesystem::path& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

std::string DumpOrEmpty(const Json& object, const char* key) {
  return object.contains(key) ? object[key].dump() : "";
}

ChatInput InputOf(const Json& golden) {
  ChatInput input;
  for (const Json& message : golden["messages"]) {
    ChatMessage& out = input.messages.emplace_back();
    Json fields = Json::object();
    for (const auto& [key, value] : message.items()) {
      if (key == "role") {
        out.role = value.get<std::string>();
      } else if (key == "content" && value.is_string()) {
        out.content = value.get<std::string>();
      } else {
        fields[key] = value;
      }
    }
    if (!fields.empty()) out.fields_json = fields.dump();
  }
  input.tools_json = DumpOrEmpty(golden, "tools");
  input.documents_json = DumpOrEmpty(golden, "documents");
  input.template_kwargs_json = DumpOrEmpty(golden, "kwargs");
  input.add_generation_prompt = golden.value("add_generation_prompt", false);
  return input;
}

absl::StatusOr<RenderedPrompt> CompileAndRender(const std::string& source, const Json& golden,
                                                const ChatInput& input) {
  TemplateOptions options;
  options.bos_token = golden["bos_token"];
  options.eos_token = golden["eos_token"];
  options.time_zone = absl::UTCTimeZone();
  options.now = [] {
    return absl::FromCivil(absl::CivilSecond(2024, 7, 26, 9, 5, 3), absl::UTCTimeZone());
  };
  ASSIGN_OR_RETURN(const auto chat_template, ChatTemplate::Compile(source, options));
  return chat_template->Render(input);
}

void ExpectGolden(const absl::StatusOr<RenderedPrompt>& result, const Json& golden) {
  if (golden.contains("expected")) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->text, golden["expected"].get<std::string>());
    return;
  }
  ASSERT_FALSE(result.ok()) << "jinja2: " << golden["error"] << "\nours: " << result->text;
  EXPECT_NE(result.status().code(), absl::StatusCode::kInternal) << result.status();
  if (golden.contains("raised")) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(result.status().message()), golden["raised"].get<std::string>());
  }
}

std::filesystem::path DataFolder() {
  return std::filesystem::path(TOKENBUTLER_TEST_DATA) / "chat_templates";
}

TEST(TemplateGoldenTest, WholeTemplatesRenderAsInJinja2) {
  int num_cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DataFolder())) {
    if (entry.path().filename() == "snippets.json") continue;
    const Json golden = ReadGolden(entry.path());
    for (const Json& test_case : golden["cases"]) {
      SCOPED_TRACE(entry.path().filename().string() + " " + test_case["case"].get<std::string>());
      ExpectGolden(CompileAndRender(golden["template"], golden, InputOf(test_case)), test_case);
      ++num_cases;
    }
  }
  EXPECT_GE(num_cases, 230);
}

TEST(TemplateGoldenTest, SnippetsRenderAsInJinja2) {
  const Json golden = ReadGolden(DataFolder() / "snippets.json");
  const ChatInput input = InputOf(golden["conversation"]);
  int num_rendered = 0;
  for (const Json& snippet : golden["snippets"]) {
    const auto source = snippet["template"].get<std::string>();
    num_rendered += snippet.contains("expected");
    SCOPED_TRACE(source);
    ExpectGolden(CompileAndRender(source, golden, input), snippet);
  }
  EXPECT_GE(golden["snippets"].size(), 400u);
  EXPECT_GE(num_rendered, 250);
}

// Content spans hold exactly bytes that came from the conversation.
TEST(TemplateGoldenTest, TemplateTextIsNeverContent) {
  for (const auto& entry : std::filesystem::directory_iterator(DataFolder())) {
    if (entry.path().filename() == "snippets.json") continue;
    const Json golden = ReadGolden(entry.path());
    for (const Json& test_case : golden["cases"]) {
      const auto result = CompileAndRender(golden["template"], golden, InputOf(test_case));
      if (!result.ok()) continue;
      size_t last_end = 0;
      for (const auto& [begin, end] : result->content_spans) {
        ASSERT_LT(begin, end);
        ASSERT_GE(begin, last_end);
        ASSERT_LE(end, result->text.size());
        last_end = end;
        const std::string span = result->text.substr(begin, end - begin);
        if (test_case["case"] == "hostile") continue;
        for (const char* control : {"<|im_start|>", "<|im_end|>", "{ask}", "<[say]>", "<#/#>",
                                    "《▁ask▁》", "@(user)", "((ask))", "<~end~>"}) {
          EXPECT_EQ(span.find(control), std::string::npos)
              << entry.path().filename() << " " << test_case["case"] << ": " << span;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tokenbutler
