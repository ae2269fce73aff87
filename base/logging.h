#pragma once

#include <string_view>
#include <utility>

#include "base/status.h"

namespace tokenbutler {

// The only door to spdlog. The log belongs to the process, as standard error does: it is the one
// thing here that is not injected. Any thread. Lines below the level cost one comparison.

enum class LogFormat {
  kText,  // 2026-01-31T12:00:00.123Z info  [request id] message
  kJson,  // {"time":"...","level":"info","request_id":"...","message":"..."}
};
enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Names as flags spell them: "text", "json"; "debug", "info", "warning", "error", "off".
// INVALID_ARGUMENT naming the value and the choices.
absl::StatusOr<LogFormat> ParseLogFormat(std::string_view name);
absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name);

// Before the first call lines go to standard error as text, from kInfo up. REQUIRES: no other
// thread logs meanwhile.
void InitLogging(LogFormat format, LogLevel level);

bool LogEnabled(LogLevel level);

// One line. `request_id` is a field of its own; empty: not about a request. Control characters and
// ill-formed UTF-8 are escaped, so that no input can forge a line.
void LogLine(LogLevel level, std::string_view request_id, std::string_view message);

// The line that LogLine would write for these, without its newline; for tests.
std::string FormatLogLine(LogFormat format, LogLevel level, std::string_view time,
                          std::string_view request_id, std::string_view message);

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  if (!LogEnabled(LogLevel::kDebug)) return;
  LogLine(LogLevel::kDebug, {}, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  if (!LogEnabled(LogLevel::kInfo)) return;
  LogLine(LogLevel::kInfo, {}, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  if (!LogEnabled(LogLevel::kWarning)) return;
  LogLine(LogLevel::kWarning, {}, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  if (!LogEnabled(LogLevel::kError)) return;
  LogLine(LogLevel::kError, {}, fmt::format(format, std::forward<Args>(args)...));
}

// Lines about one request: LogRequest(LogLevel::kInfo, request.request_id, "finished after {}", t).
template <typename... Args>
void LogRequest(LogLevel level, std::string_view request_id, fmt::format_string<Args...> format,
                Args&&... args) {
  if (!LogEnabled(level)) return;
  LogLine(level, request_id, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tokenbutler
