// A run that is killed in the middle, several times, and gives what one gives that is left alone.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/tools/train/training_fixture.h"
#include "tools/train/training_checkpoint.h"

namespace tokenbutler {
namespace {

pid_t Start(const std::string& output) {
  std::string program = TRAINING_PROCESS, folder = output;
  char* arguments[] = {program.data(), folder.data(), nullptr};
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environ), 0);
  return pid;
}

int WaitFor(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

// Steps that the log of a run has; 0 when there is none.
long NumSteps(const std::string& folder) {
  const std::string path = folder + "/log.jsonl";
  if (!std::filesystem::exists(path)) return 0;
  const std::string log = ReadFile(path);
  long count = 0;
  for (size_t at = 0; (at = log.find(R"("type":"step")", at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(KilledTrainingTest, GoesOnToTheSameWeights) {
  TemporaryFolder folder;
  const std::string whole = folder.path() / "whole", killed = folder.path() / "killed";
  ASSERT_EQ(WaitFor(Start(whole)), 0);

  for (const long kill_at : {5L, 64L, 171L}) {
    const pid_t pid = Start(killed);
    while (NumSteps(killed) < kill_at && kill(pid, 0) == 0 && waitpid(pid, nullptr, WNOHANG) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(pid, SIGKILL);
    const int status = WaitFor(pid);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ASSERT_LT(NumSteps(killed), 300);
  }
  ASSERT_EQ(WaitFor(Start(killed)), 0);

  const auto a = *TrainingCheckpoint::Read(whole + "/checkpoint", {});
  const auto b = *TrainingCheckpoint::Read(killed + "/checkpoint", {});
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_TRUE(b->is_finished);
  EXPECT_EQ(a->step, b->step);
  EXPECT_EQ(a->values, b->values);
  EXPECT_EQ(a->best_values, b->best_values);
  EXPECT_EQ(a->best_step, b->best_step);
  EXPECT_EQ(a->first_moment, b->first_moment);
  EXPECT_EQ(NumSteps(whole), 300);
  EXPECT_EQ(NumSteps(killed), 300);
}

}  // namespace
}  // namespace tokenbutler
