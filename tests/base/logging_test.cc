#include "base/logging.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {
namespace {

constexpr char kTime[] = "2026-01-31T12:00:00.123Z";

TEST(LoggingTest, TextLinesNameTheRequest) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, LogLevel::kInfo, kTime, "r-1", "done"),
            "2026-01-31T12:00:00.123Z info    [r-1] done");
  EXPECT_EQ(FormatLogLine(LogFormat::kText, LogLevel::kWarning, kTime, "", "hm"),
            "2026-01-31T12:00:00.123Z warning hm");
}

TEST(LoggingTest, JsonLinesAreJson) {
  const std::string hostile = "say \"hi\"\n\\ \x01 \xFF end";
  const auto parsed = nlohmann::json::parse(
      FormatLogLine(LogFormat::kJson, LogLevel::kError, kTime, "r\"1", hostile));
  EXPECT_EQ(parsed["time"], kTime);
  EXPECT_EQ(parsed["level"], "error");
  EXPECT_EQ(parsed["request_id"], "r\"1");
  EXPECT_EQ(parsed["message"], "say \"hi\"\n\\ \x01 \xEF\xBF\xBD end");
  const auto without =
      nlohmann::json::parse(FormatLogLine(LogFormat::kJson, LogLevel::kInfo, kTime, "", "x"));
  EXPECT_FALSE(without.contains("request_id"));
}

TEST(LoggingTest, NoInputCanForgeALine) {
  const std::string line = FormatLogLine(LogFormat::kText, LogLevel::kInfo, kTime, "id",
                                         "a\r\n2026 error forged \x1b[31m \"quoted\" back\\slash");
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_THAT(line, ::testing::HasSubstr("\"quoted\" back\\slash"));
}

TEST(LoggingTest, NamesOfFlags) {
  EXPECT_EQ(*ParseLogFormat("json"), LogFormat::kJson);
  EXPECT_EQ(*ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_THAT(std::string(ParseLogFormat("xml").status().message()), ::testing::HasSubstr("'xml'"));
  EXPECT_THAT(std::string(ParseLogLevel("loud").status().message()),
              ::testing::HasSubstr("'loud'"));
}

TEST(LoggingTest, LevelsFilter) {
  InitLogging(LogFormat::kText, LogLevel::kError);
  EXPECT_FALSE(LogEnabled(LogLevel::kWarning));
  EXPECT_TRUE(LogEnabled(LogLevel::kError));
  ::testing::internal::CaptureStderr();
  LogInfo("not {}", "shown");
  LogError("shown {}", 1);
  LogRequest(LogLevel::kError, "r-2", "for {}", "a request");
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, ::testing::AllOf(::testing::HasSubstr("shown 1\n"),
                                    ::testing::HasSubstr("[r-2] for a request\n"),
                                    ::testing::Not(::testing::HasSubstr("not"))));
  InitLogging(LogFormat::kText, LogLevel::kInfo);
}

}  // namespace
}  // namespace tokenbutler
