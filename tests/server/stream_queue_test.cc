#include "server/stream_queue.h"

#include <atomic>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

OutputChunk Chunk(int index, const std::string& text) {
  OutputChunk chunk;
  chunk.index = index;
  chunk.text = text;
  chunk.token_ids = {1};
  return chunk;
}

FinishedOutput Finished(int index) {
  FinishedOutput output;
  output.index = index;
  return output;
}

constexpr size_t kRoomy = size_t{1} << 30;

TEST(StreamQueueTest, DeltasOfOneCompletionJoinAndKeepTheirOrder) {
  StreamQueue queue(kRoomy);
  queue.Push(Chunk(0, "a"));
  queue.Push(Chunk(1, "x"));
  queue.Push(Chunk(0, "b"));
  queue.Push(Finished(1));
  queue.Push(Chunk(0, "c"));
  queue.Push(Finished(0));
  const auto first = std::get<OutputChunk>(*queue.Pop());
  EXPECT_EQ(first.index, 0);
  EXPECT_EQ(first.text, "abc");
  EXPECT_EQ(first.token_ids.size(), 3);
  EXPECT_EQ(std::get<OutputChunk>(*queue.Pop()).text, "x");
  EXPECT_EQ(std::get<FinishedOutput>(*queue.Pop()).index, 1);
  EXPECT_EQ(std::get<FinishedOutput>(*queue.Pop()).index, 0);
  EXPECT_FALSE(queue.Pop());
  EXPECT_EQ(queue.bytes(), 0);
}

TEST(StreamQueueTest, OnlyTheNewestProgressIsKept) {
  StreamQueue queue(kRoomy);
  for (int i = 1; i <= 3; ++i) {
    PrefillProgress progress;
    progress.processed_tokens = i;
    queue.Push(progress);
  }
  queue.Push(std::vector<PositionLogprobs>(2));
  queue.Push(std::vector<PositionLogprobs>(3));
  EXPECT_EQ(std::get<PrefillProgress>(*queue.Pop()).processed_tokens, 3);
  EXPECT_EQ(std::get<std::vector<PositionLogprobs>>(*queue.Pop()).size(), 2);
  EXPECT_EQ(std::get<std::vector<PositionLogprobs>>(*queue.Pop()).size(), 3);
}

TEST(StreamQueueTest, JoinedDeltasStayWellBelowWhatClientsReceive) {
  StreamQueue queue(kRoomy);
  const std::string kilobyte(1024, 'x');
  for (int i = 0; i < 3000; ++i) queue.Push(Chunk(0, kilobyte));
  size_t bytes = 0;
  while (const auto event = queue.Pop()) {
    const auto& chunk = std::get<OutputChunk>(*event);
    EXPECT_LE(chunk.text.size(), size_t{300} << 10);
    bytes += chunk.text.size();
  }
  EXPECT_EQ(bytes, size_t{3000} << 10);
}

TEST(StreamQueueTest, SaysWhenTheClientIsTooFarBehind) {
  StreamQueue queue(1000);
  EXPECT_TRUE(queue.Push(Chunk(0, std::string(900, 'x'))));
  EXPECT_TRUE(queue.Push(std::vector<PositionLogprobs>(10'000))) << "bounded by the prompt";
  EXPECT_FALSE(queue.Push(Chunk(0, std::string(200, 'x'))));
  queue.Pop();
  EXPECT_TRUE(queue.Push(Chunk(0, "x")));
}

TEST(StreamQueueTest, AfterCloseEverythingIsDropped) {
  StreamQueue queue(10);
  queue.Push(Chunk(0, "abc"));
  queue.Close();
  EXPECT_FALSE(queue.Pop());
  EXPECT_TRUE(queue.Push(Chunk(0, std::string(100, 'x'))));
  EXPECT_FALSE(queue.Pop());
  EXPECT_EQ(queue.bytes(), 0);
}

// The engine's thread on one side, gRPC's on the other; for ThreadSanitizer above all.
TEST(StreamQueueTest, NothingIsLostBetweenThreads) {
  constexpr int kDeltas = 20'000;
  StreamQueue queue(kRoomy);
  std::atomic<bool> done = false;
  std::thread engine([&] {
    for (int i = 0; i < kDeltas; ++i) queue.Push(Chunk(i % 3, std::string(1, 'a' + i % 26)));
    done = true;
  });
  size_t tokens = 0;
  while (true) {
    const bool last_round = done;
    while (const auto event = queue.Pop()) tokens += std::get<OutputChunk>(*event).token_ids.size();
    if (last_round) break;
    std::this_thread::yield();
  }
  engine.join();
  EXPECT_EQ(tokens, kDeltas);
}

}  // namespace
}  // namespace tokenbutler
