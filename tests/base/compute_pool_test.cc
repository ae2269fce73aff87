#include "base/compute_pool.h"

#include <atomic>
#include <chrono>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

TEST(ComputePoolTest, RunsEachTaskOnceAndShowsItsWrites) {
  for (const int num_threads : {1, 2, 5}) {
    ComputePool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (const int num_tasks : {0, 1, 2, 3, 17, 1000}) {
      std::vector<int> calls(num_tasks, 0);  // not atomic: the pool orders the accesses
      pool.ParallelFor(num_tasks, [&](int task) { ++calls[task]; });
      EXPECT_EQ(calls, std::vector<int>(num_tasks, 1));
    }
  }
}

// Thousands of sections of changing sizes, as a decode step has: a worker that is still leaving
// one section must not run a task of the next twice or lose one.
TEST(ComputePoolTest, ManyShortSections) {
  ComputePool pool(4);
  std::vector<int> sums(64, 0);
  long expected = 0;
  for (const bool in_step : {false, true}) {
    std::optional<ComputePool::StepScope> step;
    if (in_step) step.emplace(pool);
    for (int section = 0; section < 5000; ++section) {
      const int num_tasks = section % 64;
      pool.ParallelFor(num_tasks, [&](int task) { sums[task] += section; });
      expected += static_cast<long>(num_tasks) * section;
    }
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), 0L), expected);
}

TEST(ComputePoolTest, EachThreadBeginsWithTasksOfItsOwn) {
  ComputePool pool(2);
  std::atomic<int> arrived{0};
  std::vector<std::thread::id> ran_by(101);
  pool.ParallelFor(101, [&](int task) {
    ran_by[task] = std::this_thread::get_id();
    if (task != 0 && task != 51) return;
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(ran_by[0], std::this_thread::get_id());
  EXPECT_NE(ran_by[51], std::this_thread::get_id());
}

TEST(ComputePoolTest, OthersTakeTheTasksOfASlowThread) {
  for (const int num_threads : {2, 3, 7}) {
    ComputePool pool(num_threads);
    std::atomic<int> num_done{0};
    // Whoever has the first task of the last thread keeps it until all others are done.
    const int num_tasks = 10 * num_threads, slow = num_tasks - 10;
    pool.ParallelFor(num_tasks, [&](int task) {
      while (task == slow && num_done.load() < num_tasks - 1) std::this_thread::yield();
      ++num_done;
    });
    EXPECT_EQ(num_done.load(), num_tasks);
  }
}

TEST(ComputePoolTest, WorkersTakePartAfterSleeping) {
  ComputePool pool(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // beyond every spin
  // Two tasks that wait for each other need two threads.
  std::atomic<int> arrived{0};
  pool.ParallelFor(2, [&](int) {
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
}

TEST(ComputePoolTest, CallerWaitsForASlowWorker) {
  ComputePool pool(2);
  std::atomic<int> arrived{0};
  int slow_result = 0;
  const std::thread::id caller = std::this_thread::get_id();
  pool.ParallelFor(2, [&](int) {
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
    if (std::this_thread::get_id() != caller) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the caller falls asleep
      slow_result = 1;
    }
  });
  EXPECT_EQ(slow_result, 1);
}

TEST(ComputePoolTest, EndsWhileWorkersSpinOrSleep) {
  for (int i = 0; i < 50; ++i) {
    ComputePool pool(3);
    ComputePool::StepScope step(pool);
    std::atomic<int> calls{0};
    pool.ParallelFor(3, [&](int) { ++calls; });
    EXPECT_EQ(calls.load(), 3);
  }
}

}  // namespace
}  // namespace tokenbutler
