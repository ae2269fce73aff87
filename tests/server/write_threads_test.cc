#include "server/write_threads.h"

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/stream_queue.h"

namespace tokenbutler {
namespace {

class FakeStream : public WritableStream {
 public:
  explicit FakeStream(std::function<void()> write) : write_(std::move(write)) {}
  void WriteReady() override { write_(); }

 private:
  const std::function<void()> write_;
};

// Opened once, for any number of waiting threads.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    opened_.SignalAll();
  }
  void Wait() {
    MutexLock lock(&mutex_);
    while (!open_) opened_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST(WriteThreadsTest, WritesInTheOrderOfNamingAndOnceForSeveralCalls) {
  Gate begun, go_on, done;
  std::vector<int> written;
  const auto stream = [&](int number) {
    return std::make_shared<FakeStream>([&written, number] { written.push_back(number); });
  };
  const auto first = std::make_shared<FakeStream>([&] {
    begun.Open();
    go_on.Wait();
    written.push_back(0);
  });
  const auto second = stream(1), third = stream(2);
  const auto last = std::make_shared<FakeStream>([&] { done.Open(); });
  WriteThreads threads(1);
  threads.WriteSoon(first);
  begun.Wait();
  threads.WriteSoon(second);
  threads.WriteSoon(third);
  threads.WriteSoon(second);
  threads.WriteSoon(first);  // it has begun: once more
  threads.WriteSoon(last);
  go_on.Open();
  done.Wait();
  EXPECT_EQ(written, (std::vector<int>{0, 1, 2, 0}));
}

TEST(WriteThreadsTest, AStreamMayNameItselfAndOthersWhileItWrites) {
  constexpr int kRounds = 100;
  Gate done;
  auto owned = std::make_unique<WriteThreads>(1);
  WriteThreads* const threads = owned.get();
  int rounds = 0;
  std::shared_ptr<FakeStream> ping, pong;
  ping = std::make_shared<FakeStream>([&] {
    if (++rounds >= kRounds) return done.Open();
    threads->WriteSoon(ping);
    threads->WriteSoon(pong);
  });
  pong = std::make_shared<FakeStream>([&] { threads->WriteSoon(ping); });
  threads->WriteSoon(ping);
  done.Wait();
  owned.reset();
  EXPECT_GE(rounds, kRounds);
}

TEST(WriteThreadsTest, LetsGoOfStreamsThatHaveWritten) {
  const auto alive = std::make_shared<int>(0);
  Gate done;
  WriteThreads threads(2);
  threads.WriteSoon(std::make_shared<FakeStream>([alive] {}));
  threads.WriteSoon(std::make_shared<FakeStream>([alive, &done] { done.Open(); }));
  done.Wait();
  const absl::Time limit = absl::Now() + absl::Seconds(20);
  while (alive.use_count() > 1 && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(alive.use_count(), 1);
}

TEST(WriteThreadsTest, TheEndLetsEverybodyWriteOnceMore) {
  Gate begun;
  std::atomic<int> written = 0;
  {
    WriteThreads threads(1);
    threads.WriteSoon(std::make_shared<FakeStream>([&] { begun.Open(); }));
    for (int i = 0; i < 50; ++i) {
      threads.WriteSoon(std::make_shared<FakeStream>([&] { ++written; }));
    }
    begun.Wait();
  }
  EXPECT_EQ(written, 50);
}

// One engine thread, many streams with a queue each, several write threads, and clients that answer
// each message from a thread of their own: nothing is lost, nothing changes its order, only one
// message of a stream is under way at a time. The protocol is StreamWriter's, without gRPC.
class QueuedStream : public WritableStream, public std::enable_shared_from_this<QueuedStream> {
 public:
  explicit QueuedStream(WriteThreads* threads) : threads_(threads) {}

  void Push(const OutputChunk& chunk) {
    queue_.Push(chunk);
    {
      MutexLock lock(&mutex_);
      if (in_flight_) return;
    }
    threads_->WriteSoon(shared_from_this());
  }
  void WriteReady() override { Pump(); }
  // A client has taken in the message under way; false: there was none.
  bool Answer() {
    {
      MutexLock lock(&mutex_);
      if (!sent_) return false;
      sent_ = false;
      in_flight_ = false;
    }
    Pump();
    return true;
  }
  int num_received() const { return num_received_; }
  bool in_order() const { return in_order_; }

 private:
  void Pump() {
    {
      MutexLock lock(&mutex_);
      if (in_flight_ || !queue_.Pop(&event_)) return;
      in_flight_ = true;
    }
    for (const int32_t id : event_.chunk.token_ids) in_order_ = in_order_ && id == num_received_++;
    MutexLock lock(&mutex_);
    sent_ = true;
  }

  WriteThreads* const threads_;
  StreamQueue queue_{size_t{1} << 30};
  Mutex mutex_;
  bool in_flight_ ABSL_GUARDED_BY(mutex_) = false;
  bool sent_ ABSL_GUARDED_BY(mutex_) = false;
  // Belong to whoever set in_flight_.
  StreamEvent event_;
  bool in_order_ = true;
  std::atomic<int> num_received_ = 0;
};

TEST(WriteThreadsTest, NothingIsLostBetweenManyThreads) {
  constexpr int kStreams = 40;
  constexpr int kTokens = 300;
  std::vector<std::shared_ptr<QueuedStream>> streams;
  WriteThreads threads(3);
  for (int i = 0; i < kStreams; ++i) streams.push_back(std::make_shared<QueuedStream>(&threads));
  std::thread engine([&] {
    OutputChunk chunk;
    for (int t = 0; t < kTokens; ++t) {
      chunk.token_ids = {t};
      for (const auto& stream : streams) stream->Push(chunk);
    }
  });
  std::vector<std::thread> clients;
  for (int c = 0; c < 2; ++c) {
    clients.emplace_back([&, c] {
      for (bool all = false; !all;) {
        all = true;
        for (int i = c; i < kStreams; i += 2) {
          all = !streams[i]->Answer() && streams[i]->num_received() == kTokens && all;
        }
        std::this_thread::yield();
      }
    });
  }
  engine.join();
  for (std::thread& client : clients) client.join();
  for (const auto& stream : streams) EXPECT_TRUE(stream->in_order());
}

}  // namespace
}  // namespace tokenbutler
