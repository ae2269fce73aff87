#include "server/stream_queue.h"

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>

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

std::optional<StreamEvent> Pop(StreamQueue& queue) {
  StreamEvent event;
  return queue.Pop(&event) ? std::optional<StreamEvent>(std::move(event)) : std::nullopt;
}

// What the oldest event must be.
OutputChunk PopChunk(StreamQueue& queue) {
  const std::optional<StreamEvent> event = Pop(queue);
  EXPECT_TRUE(event && event->kind == StreamEvent::Kind::kChunk);
  return event ? event->chunk : OutputChunk();
}
FinishedOutput PopFinished(StreamQueue& queue) {
  const std::optional<StreamEvent> event = Pop(queue);
  EXPECT_TRUE(event && event->kind == StreamEvent::Kind::kFinished);
  return event ? event->finished : FinishedOutput();
}
size_t PopPromptLogprobs(StreamQueue& queue) {
  const std::optional<StreamEvent> event = Pop(queue);
  EXPECT_TRUE(event && event->kind == StreamEvent::Kind::kPromptLogprobs);
  return event ? event->prompt_logprobs.size() : 0;
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
  const OutputChunk first = PopChunk(queue);
  EXPECT_EQ(first.index, 0);
  EXPECT_EQ(first.text, "abc");
  EXPECT_EQ(first.token_ids.size(), 3);
  EXPECT_EQ(PopChunk(queue).text, "x");
  EXPECT_EQ(PopFinished(queue).index, 1);
  EXPECT_EQ(PopFinished(queue).index, 0);
  EXPECT_FALSE(Pop(queue));
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
  const std::optional<StreamEvent> progress = Pop(queue);
  ASSERT_TRUE(progress && progress->kind == StreamEvent::Kind::kProgress);
  EXPECT_EQ(progress->progress.processed_tokens, 3);
  EXPECT_EQ(PopPromptLogprobs(queue), 2);
  EXPECT_EQ(PopPromptLogprobs(queue), 3);
}

TEST(StreamQueueTest, JoinedDeltasStayWellBelowWhatClientsReceive) {
  StreamQueue queue(kRoomy);
  const std::string kilobyte(1024, 'x');
  for (int i = 0; i < 3000; ++i) queue.Push(Chunk(0, kilobyte));
  size_t bytes = 0;
  while (const auto event = Pop(queue)) {
    const auto& chunk = event->chunk;
    EXPECT_LE(chunk.text.size(), size_t{300} << 10);
    bytes += chunk.text.size();
  }
  EXPECT_EQ(bytes, size_t{3000} << 10);
}

// A queue that grows while its oldest event is anywhere in it.
TEST(StreamQueueTest, ManyWaitingEventsKeepTheirOrder) {
  StreamQueue queue(kRoomy);
  int pushed = 0;
  int popped = 0;
  for (int round = 1; round < 40; ++round) {
    for (int i = 0; i < round; ++i, ++pushed) {
      pushed % 2 == 0 ? queue.Push(Chunk(pushed, std::to_string(pushed)))
                      : queue.Push(Finished(pushed));
    }
    for (int i = 0; i < round - round / 3; ++i, ++popped) {
      const std::optional<StreamEvent> event = Pop(queue);
      ASSERT_TRUE(event);
      if (popped % 2 == 0) {
        EXPECT_EQ(event->kind, StreamEvent::Kind::kChunk);
        EXPECT_EQ(event->chunk.text, std::to_string(popped));
      } else {
        EXPECT_EQ(event->kind, StreamEvent::Kind::kFinished);
        EXPECT_EQ(event->finished.index, popped);
      }
    }
  }
  while (Pop(queue)) ++popped;
  EXPECT_EQ(popped, pushed);
}

// What an earlier event left in the memory that is used again must not show.
TEST(StreamQueueTest, AnEventHasNothingOfAnEarlierOne) {
  StreamQueue queue(kRoomy);
  OutputChunk rich = Chunk(3, "rich");
  rich.logprobs.resize(2);
  StreamEvent event;
  for (int i = 0; i < 20; ++i) {
    queue.Push(rich);
    ASSERT_TRUE(queue.Pop(&event));
  }
  for (int i = 0; i < 20; ++i) {
    OutputChunk plain;
    plain.text = "plain";
    queue.Push(plain);
    ASSERT_TRUE(queue.Pop(&event));
    const auto& chunk = event.chunk;
    EXPECT_EQ(chunk.index, 0);
    EXPECT_EQ(chunk.text, "plain");
    EXPECT_TRUE(chunk.token_ids.empty());
    EXPECT_TRUE(chunk.logprobs.empty());
  }
}

TEST(StreamQueueTest, SaysWhenTheClientIsTooFarBehind) {
  StreamQueue queue(1000);
  EXPECT_TRUE(queue.Push(Chunk(0, std::string(900, 'x'))));
  EXPECT_TRUE(queue.Push(std::vector<PositionLogprobs>(10'000))) << "bounded by the prompt";
  EXPECT_FALSE(queue.Push(Chunk(0, std::string(200, 'x'))));
  Pop(queue);
  EXPECT_TRUE(queue.Push(Chunk(0, "x")));
}

TEST(StreamQueueTest, AfterCloseEverythingIsDropped) {
  StreamQueue queue(10);
  queue.Push(Chunk(0, "abc"));
  queue.Close();
  EXPECT_FALSE(Pop(queue));
  EXPECT_TRUE(queue.Push(Chunk(0, std::string(100, 'x'))));
  EXPECT_FALSE(Pop(queue));
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
    while (const auto event = Pop(queue)) tokens += event->chunk.token_ids.size();
    if (last_round) break;
    std::this_thread::yield();
  }
  engine.join();
  EXPECT_EQ(tokens, kDeltas);
}

}  // namespace
}  // namespace tokenbutler
