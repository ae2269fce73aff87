#include "tools/eval/tasks/answer_metrics.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"

namespace tokenbutler {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  absl::AsciiStrToLower(&lower);
  return lower;
}

int CountContained(std::string_view answer, const std::vector<std::string>& expected) {
  const std::string lower = Lower(answer);
  return static_cast<int>(std::count_if(
      expected.begin(), expected.end(),
      [&](const std::string& one) { return lower.find(Lower(one)) != std::string::npos; }));
}

// Index of the brace that closes the one at `open`; npos: none.
size_t ClosingBrace(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i;
  }
  return std::string_view::npos;
}

}  // namespace

double MatchAll(std::string_view answer, const std::vector<std::string>& expected) {
  return static_cast<double>(CountContained(answer, expected)) /
         static_cast<double>(expected.size());
}

double MatchAny(std::string_view answer, const std::vector<std::string>& expected) {
  return CountContained(answer, expected) > 0 ? 1 : 0;
}

double MatchStart(std::string_view answer, const std::vector<std::string>& expected) {
  while (!answer.empty() && absl::ascii_isspace(static_cast<unsigned char>(answer.front()))) {
    answer.remove_prefix(1);
  }
  for (const std::string& one : expected) {
    if (answer.substr(0, one.size()) != one) continue;
    const std::string_view rest = answer.substr(one.size());
    if (rest.empty() || !absl::ascii_isalnum(static_cast<unsigned char>(rest.front()))) return 1;
  }
  return 0;
}

std::optional<std::string> LastBoxed(std::string_view answer) {
  std::optional<std::string> last;
  for (const std::string_view command : {"\\boxed{", "\\fbox{"}) {
    const size_t at = answer.rfind(command);
    if (at == std::string_view::npos) continue;
    const size_t open = at + command.size() - 1;
    const size_t close = ClosingBrace(answer, open);
    if (close == std::string_view::npos) continue;
    if (command == "\\boxed{" || !last) {
      last = std::string(answer.substr(open + 1, close - open - 1));
    }
  }
  return last;
}

std::optional<int64_t> ParseBoxedInteger(std::string_view boxed) {
  std::string text = absl::StrReplaceAll(std::string(boxed), {{"\\text", ""},
                                                              {"{,}", ""},
                                                              {"\\,", ""},
                                                              {"\\!", ""},
                                                              {",", ""},
                                                              {"$", ""},
                                                              {"\\(", ""},
                                                              {"\\)", ""},
                                                              {"{", ""},
                                                              {"}", ""}});
  text.erase(std::remove_if(text.begin(), text.end(),
                            [](unsigned char c) { return absl::ascii_isspace(c); }),
             text.end());
  int64_t value = 0;
  if (text.empty() || text.size() > 18) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

double MatchBoxedInteger(std::string_view answer, const std::vector<std::string>& expected) {
  const std::optional<std::string> boxed = LastBoxed(answer);
  const std::optional<int64_t> value = boxed ? ParseBoxedInteger(*boxed) : std::nullopt;
  if (!value) return 0;
  return std::any_of(expected.begin(), expected.end(),
                     [&](const std::string& one) { return ParseBoxedInteger(one) == value; })
             ? 1
             : 0;
}

}  // namespace tokenbutler
