#include "base/queue.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using Result = BoundedQueue<std::unique_ptr<int>>::PushResult;

TEST(BoundedQueueTest, IsFirstInFirstOutAndBounded) {
  BoundedQueue<std::unique_ptr<int>> queue(2);
  EXPECT_EQ(queue.TryPush(std::make_unique<int>(1)), Result::kOk);
  EXPECT_EQ(queue.TryPush(std::make_unique<int>(2)), Result::kOk);
  auto third = std::make_unique<int>(3);
  EXPECT_EQ(queue.TryPush(std::move(third)), Result::kFull);
  ASSERT_NE(third, nullptr) << "a refused item must stay with its owner";
  EXPECT_EQ(queue.Push(std::move(third), absl::Milliseconds(1)), Result::kFull);
  EXPECT_EQ(queue.size(), 2);
  EXPECT_EQ(**queue.Pop(absl::ZeroDuration()), 1);
  EXPECT_EQ(**queue.Pop(absl::ZeroDuration()), 2);
  EXPECT_FALSE(queue.Pop(absl::Milliseconds(1)).has_value());
}

// It grows while its oldest item is anywhere in it, up to a capacity that is no power of two.
TEST(BoundedQueueTest, KeepsTheOrderWhileItGrows) {
  constexpr size_t kCapacity = 37;
  BoundedQueue<std::unique_ptr<int>> queue(kCapacity);
  int pushed = 0;
  int popped = 0;
  for (size_t most = 1; most <= kCapacity; ++most) {
    for (int i = 0; i < 3; ++i, ++popped) {
      while (queue.size() < most) {
        ASSERT_EQ(queue.TryPush(std::make_unique<int>(pushed++)), Result::kOk);
      }
      ASSERT_EQ(**queue.Pop(absl::ZeroDuration()), popped);
    }
  }
  while (queue.size() < kCapacity) {
    ASSERT_EQ(queue.TryPush(std::make_unique<int>(pushed++)), Result::kOk);
  }
  EXPECT_EQ(queue.TryPush(std::make_unique<int>(0)), Result::kFull);
  for (; popped < pushed; ++popped) ASSERT_EQ(**queue.Pop(absl::ZeroDuration()), popped);
  EXPECT_FALSE(queue.Pop(absl::ZeroDuration()).has_value());
}

TEST(BoundedQueueTest, CloseRefusesNewItemsAndKeepsTheQueuedOnes) {
  BoundedQueue<int> queue(4);
  EXPECT_EQ(queue.TryPush(7), BoundedQueue<int>::PushResult::kOk);
  queue.Close();
  EXPECT_EQ(queue.TryPush(8), BoundedQueue<int>::PushResult::kClosed);
  EXPECT_EQ(queue.Pop(absl::InfiniteDuration()), 7);
  EXPECT_EQ(queue.Pop(absl::InfiniteDuration()), std::nullopt);
  EXPECT_TRUE(queue.closed());
}

TEST(BoundedQueueTest, CloseWakesWaitersOnBothEnds) {
  BoundedQueue<int> empty(1), full(1);
  ASSERT_EQ(full.TryPush(1), BoundedQueue<int>::PushResult::kOk);
  std::thread consumer([&] { EXPECT_FALSE(empty.Pop(absl::InfiniteDuration()).has_value()); });
  std::thread producer([&] {
    EXPECT_EQ(full.Push(2, absl::InfiniteDuration()), BoundedQueue<int>::PushResult::kClosed);
  });
  empty.Close();
  full.Close();
  consumer.join();
  producer.join();
}

TEST(BoundedQueueTest, ManyProducersAndConsumersLoseNothing) {
  constexpr int kThreads = 4, kItems = 2000;
  BoundedQueue<int> queue(8);
  std::atomic<int64_t> sum{0};
  std::atomic<int> taken{0};
  std::vector<std::thread> producers, consumers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&] {
      for (int i = 1; i <= kItems; ++i) {
        ASSERT_EQ(queue.Push(int{i}, absl::Seconds(60)), BoundedQueue<int>::PushResult::kOk);
      }
    });
    consumers.emplace_back([&] {
      while (const auto item = queue.Pop(absl::Seconds(60))) {
        sum += *item;
        ++taken;
      }
    });
  }
  for (auto& thread : producers) thread.join();
  queue.Close();
  for (auto& thread : consumers) thread.join();
  EXPECT_EQ(taken, kThreads * kItems);
  EXPECT_EQ(sum, int64_t{kThreads} * kItems * (kItems + 1) / 2);
}

}  // namespace
}  // namespace tokenbutler
