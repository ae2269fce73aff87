#include "tools/eval/tasks/longbench.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "tools/eval/tasks/json_lines.h"

namespace tokenbutler {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kContextField = "{context}";
constexpr std::string_view kInputField = "{input}";

std::vector<std::string> Strings(const Json& entry, const char* name) {
  std::vector<std::string> strings;
  const auto list = entry.find(name);
  if (list == entry.end() || list->is_null()) return strings;
  for (const Json& one : *list) strings.push_back(one.get<std::string>());
  return strings;
}

// `format` with its fields filled in; a field's text is not looked at for fields.
std::string Fill(std::string_view format, const LongBenchEntry& entry) {
  std::string text;
  while (!format.empty()) {
    if (format.substr(0, kContextField.size()) == kContextField) {
      text += entry.context;
      format.remove_prefix(kContextField.size());
    } else if (format.substr(0, kInputField.size()) == kInputField) {
      text += entry.input;
      format.remove_prefix(kInputField.size());
    } else {
      text += format[0];
      format.remove_prefix(1);
    }
  }
  return text;
}

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

absl::StatusOr<LongBenchTask> FindLongBenchTask(const std::string& name) {
  std::vector<std::string> names;
  for (const LongBenchTask& task : LongBenchTasks()) {
    if (task.name == name) return task;
    names.push_back(task.name);
  }
  return InvalidArgumentError("there is no LongBench task {}, only {}", name,
                              absl::StrJoin(names, ", "));
}

absl::StatusOr<std::vector<LongBenchEntry>> ReadLongBench(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<Json> lines, ReadJsonLines(path));
  std::vector<LongBenchEntry> entries;
  for (const Json& line : lines) {
    try {
      entries.push_back({.id = line.value("_id", ""),
                         .context = line.at("context").get<std::string>(),
                         .input = line.at("input").get<std::string>(),
                         .answers = Strings(line, "answers"),
                         .all_classes = Strings(line, "all_classes"),
                         .length = line.value("length", 0)});
    } catch (const Json::exception& e) {
      return InvalidArgumentError("{}: entry {} does not have LongBench's format: {}", path,
                                  entries.size() + 1, e.what());
    }
    if (entries.back().answers.empty()) {
      return InvalidArgumentError("{}: entry {} has no answers", path, entries.size());
    }
  }
  return entries;
}

absl::StatusOr<TaskSample> MakeLongBenchSample(const LongBenchTask& task,
                                               const LongBenchEntry& entry, int index,
                                               int max_prompt_tokens, const PromptFormat& format) {
  if (max_prompt_tokens < 2) {
    return InvalidArgumentError("max_prompt_tokens is {}, must be at least 2", max_prompt_tokens);
  }
  TaskSample sample;
  sample.task = task.name;
  sample.context_len = max_prompt_tokens;
  sample.index = index;
  const size_t context_at = task.format.find(kContextField);
  const std::string tail =
      Fill(std::string_view(task.format).substr(context_at + kContextField.size()), entry);
  std::string prompt = Fill(task.format, entry);

  const Tokenizer& tokenizer = format.tokenizer();
  const std::vector<int32_t> tokens = tokenizer.Encode(prompt, {});
  size_t question_bytes = tail.size();
  if (static_cast<int>(tokens.size()) > max_prompt_tokens) {
    const auto half = static_cast<size_t>(max_prompt_tokens / 2);
    const absl::Span<const int32_t> all(tokens);
    const std::string last = tokenizer.Decode(all.subspan(all.size() - half), true);
    prompt = tokenizer.Decode(all.subspan(0, half), true) + last;
    // A question that the cut went through is what is left of it.
    if (!EndsWith(prompt, tail)) question_bytes = last.size();
  }
  sample.context = prompt.substr(0, prompt.size() - question_bytes);
  sample.question = prompt.substr(prompt.size() - question_bytes);
  sample.answers = entry.answers;
  sample.metric = AnswerMetric::kScript;
  sample.max_tokens = task.max_tokens;
  sample.has_chat_form = task.has_chat_form;
  if (task.ends_at_newline) sample.stops = {"\n"};
  sample.extra_json =
      Json({{"_id", entry.id}, {"all_classes", entry.all_classes}, {"length", entry.length}})
          .dump();
  return sample;
}

}  // namespace tokenbutler
