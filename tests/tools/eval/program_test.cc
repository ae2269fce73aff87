// tokenbutler-eval itself: flags, exit codes and files.

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/tools/eval/tiny_evaluation.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class ProgramTest : public TinyEvaluation {
 protected:
  // Exit code, and what it has written to stdout and stderr together.
  static std::pair<int, std::string> Run(const std::string& arguments) {
    const std::string command = std::string(TOKENBUTLER_EVAL) + " " + arguments + " 2>&1";
    std::FILE* pipe = popen(command.c_str(), "r");
    std::string output;
    for (int c; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
    const int status = pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
  }

  std::string File(const std::string& name) const { return (folder_.path() / name).string(); }

  nlohmann::ordered_json Result() const {
    std::ifstream in(File("result.json"));
    return nlohmann::ordered_json::parse(in);
  }
};

TEST_F(ProgramTest, MeasuresEverySettingAtEveryBudget) {
  const std::string common = "kl " + model() + " --text " + texts() +
                             " --context 480 --scored-tokens 8 --sink-tokens 4 --local-window 16 "
                             "--threads 2 --prefill-cache " +
                             File("prefilled") + " --resume " + File("kl.jsonl") + " --output " +
                             File("result.json") + " --fact date=2030-01-02";
  const std::string command = common + " --settings sketch exact --budgets 1/3 200";
  auto [code, output] = Run(command);
  ASSERT_EQ(code, 0) << output;
  EXPECT_THAT(output, HasSubstr("mean_kl"));
  EXPECT_THAT(output, HasSubstr("kl: text 3/3, 4 settings: 2.txt"));
  EXPECT_EQ(Result()["date"], "2030-01-02");
  EXPECT_EQ(Result()["evaluation"], "kl");
  EXPECT_THAT(Result()["rows"], SizeIs(4));
  EXPECT_EQ(Result()["rows"][0]["token_budget"], 160);
  // All is there: nothing is prefilled or decoded.
  std::tie(code, output) = Run(command);
  ASSERT_EQ(code, 0) << output;
  EXPECT_THAT(output, Not(HasSubstr("kl: text")));
  // What is swept multiplies; random does not scan.
  std::tie(code, output) =
      Run(common + " --settings sketch random --intervals 1 2 --neighbours 0 1 --budgets 200");
  ASSERT_EQ(code, 0) << output;
  EXPECT_THAT(Result()["rows"], SizeIs(5));
  EXPECT_EQ(Result()["rows"][0]["setting"], "sketch:interval=1,neighbours=0");
}

TEST_F(ProgramTest, AsksTasksOfEverySetting) {
  const std::string command = "ruler " + model() +
                              " --context 500 --tasks niah_single_1 niah_multikey_2 --samples 1 "
                              "--settings random --budgets 160 --sink-tokens 4 --local-window 16 "
                              "--question papers --chat never --seed 3 --min-dense-score 0 "
                              "--threads 2 --resume " +
                              File("ruler.jsonl") + " --output " + File("result.json");
  const auto [code, output] = Run(command);
  ASSERT_EQ(code, 0) << output;
  EXPECT_THAT(output, HasSubstr("ruler: niah_multikey_2: sample 1/1"));
  EXPECT_EQ(Result()["evaluation"], "ruler");
  EXPECT_EQ(Result()["question"], "papers");
  EXPECT_EQ(Result()["chat_template"], "never");
  EXPECT_EQ(Result()["seed"], 3);
  EXPECT_EQ(Result()["essay"], "generated");
  // Dense and exact come along; then the average of both tasks.
  EXPECT_THAT(Result()["rows"], SizeIs(9));
  EXPECT_EQ(Result()["rows"][8]["task"], "average");
  EXPECT_EQ(Result()["rows"][8]["samples"], 2);
}

TEST_F(ProgramTest, MistakesEndWithASentence) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "A subcommand is required"},
      {"kl " + model(), "--text is required"},
      {"kl /nonexistent --text " + texts() + " --budgets 160", "/nonexistent"},
      {"kl " + model() + " --text /nonexistent", "/nonexistent"},
      {"kl " + model() + " --text " + texts() + " --context 480 --settings sketchy", "sketchy"},
      {"kl " + model() + " --text " + texts() + " --context 480 --budgets 481 --settings exact",
       "budget is 481 tokens"},
      {"kl " + model() + " --text " + texts() + " --context 480 --budgets 0 --settings exact",
       "budget is 0 tokens"},
      {"kl " + model() + " --text " + texts() +
           " --context 480 --budgets 160 --settings exact --scored-tokens 480",
       "480 tokens are to follow"},
      {"coref " + model() + " --question wide", "must be strict or papers"},
      {"coref " + model() + " --chat sometimes", "must be benchmark, always or never"},
      {"coref " + model() + " --context 60", "coref needs at least"},
      {"ruler " + model() + " --tasks niah", "there is no RULER task niah"},
      {"ruler " + model() + " --squad /nonexistent", "/nonexistent"},
      {"longbench " + model() + " --data " + texts(), "needs --resume"},
      {"longbench " + model() + " --data " + texts() + " --resume " + File("x.jsonl"),
       "longbench has no samples"},
      {"kl " + model() + " --text " + texts() + " --output /nonexistent/result.json",
       "--output /nonexistent/result.json cannot be written"},
      {"kl " + model() + " --text " + texts() + " --fact date", "must be NAME=VALUE"},
      {"kl " + model() + " --text " + texts() + " --context 480 --settings exact --budgets 160 " +
           "--scored-tokens 8 --sink-tokens 4 --local-window 16 --max-texts 1 --fact rows=3",
       "--fact rows is measured already"},
      {"kl " + model() + " --text " + texts() +
           " --context 480 --settings exact --budgets 200 --resume " + texts(),
       "cannot be opened"},
      {"aime " + model() + " --data " + texts() + "/0.txt", "is no JSON"}};
  for (const auto& [arguments, words] : cases) {
    const auto [code, output] = Run(arguments);
    EXPECT_GT(code, 0) << arguments;
    EXPECT_LT(code, 128) << arguments;
    EXPECT_THAT(output, HasSubstr(words)) << arguments;
  }
}

TEST_F(ProgramTest, HelpAndVersion) {
  const auto [code, help] = Run("kl --help");
  EXPECT_EQ(code, 0);
  for (const char* flag : {"--budgets", "--settings", "--intervals", "--candidates", "--neighbours",
                           "--probe-rate", "--resume", "--prefill-cache"}) {
    EXPECT_THAT(help, HasSubstr(flag));
  }
  EXPECT_EQ(Run("--version").second, std::string(TOKENBUTLER_VERSION) + "\n");
}

}  // namespace
}  // namespace tokenbutler
