#include "base/logging.h"

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "spdlog/logger.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace tokenbutler {
namespace {

constexpr std::array<std::string_view, 5> kLevelNames = {"debug", "info", "warning", "error",
                                                         "off"};

std::string_view LevelName(LogLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

// What InitLogging sets. The logger is never replaced, so that reading it needs no lock.
std::atomic<LogFormat> log_format = LogFormat::kText;
std::atomic<LogLevel> log_level = LogLevel::kInfo;

spdlog::logger& Logger() {
  static spdlog::logger& logger = *[] {
    // Leaked on purpose: threads may log until the process is gone.
    auto* created =
        new spdlog::logger("tokenbutler", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->set_pattern("%v");
    created->set_level(spdlog::level::trace);
    return created;
  }();
  return logger;
}

// `text` as the inside of a JSON string: control characters, quotes and backslashes escaped,
// ill-formed UTF-8 replaced.
std::string JsonString(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string EscapeForText(std::string_view text) {
  const std::string quoted = JsonString(text);
  std::string plain;
  plain.reserve(quoted.size());
  for (size_t i = 1; i + 1 < quoted.size(); ++i) {
    // Quotes and backslashes are harmless in a text line; only the other escapes stay.
    const bool harmless = quoted[i] == '\\' && (quoted[i + 1] == '"' || quoted[i + 1] == '\\');
    plain += harmless ? quoted[++i] : quoted[i];
  }
  return plain;
}

}  // namespace

absl::StatusOr<LogFormat> ParseLogFormat(std::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return InvalidArgumentError("log format is '{}', must be text or json", name);
}

absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == name) return static_cast<LogLevel>(i);
  }
  return InvalidArgumentError("log level is '{}', must be debug, info, warning, error or off",
                              name);
}

void InitLogging(LogFormat format, LogLevel level) {
  log_format = format;
  log_level = level;
}

bool LogEnabled(LogLevel level) { return level >= log_level.load(std::memory_order_relaxed); }

std::string FormatLogLine(LogFormat format, LogLevel level, std::string_view time,
                          std::string_view request_id, std::string_view message) {
  if (format == LogFormat::kJson) {
    const std::string request =
        request_id.empty() ? "" : fmt::format("\"request_id\":{},", JsonString(request_id));
    return fmt::format("{{\"time\":\"{}\",\"level\":\"{}\",{}\"message\":{}}}", time,
                       LevelName(level), request, JsonString(message));
  }
  const std::string request =
      request_id.empty() ? "" : fmt::format("[{}] ", EscapeForText(request_id));
  return fmt::format("{} {:<7} {}{}", time, LevelName(level), request, EscapeForText(message));
}

void LogLine(LogLevel level, std::string_view request_id, std::string_view message) {
  if (!LogEnabled(level)) return;
  const std::string time =
      absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  const std::string line =
      FormatLogLine(log_format.load(std::memory_order_relaxed), level, time, request_id, message);
  Logger().log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace tokenbutler
