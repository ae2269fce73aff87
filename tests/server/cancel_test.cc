// Deadlines, cancellations and clients that vanish, wherever the request is.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/server/server_fixture.h"
#include "tests/testing/live_heap.h"

namespace tokenbutler {
namespace {

enum class Where { kQueue, kPrefill, kDecode };

// A server whose requests stay where the test wants them.
TestServer::Options StayingIn(Where where) {
  TestServer::Options options;
  options.engine.step = absl::Milliseconds(1);
  if (where == Where::kPrefill) options.engine.prefill_steps = 1'000'000;
  if (where == Where::kQueue) options.engine.max_running = 0;
  return options;
}

bool IsThere(TestServer& server, Where where) {
  return where == Where::kQueue ? server.metrics().requests_waiting.Value() == 1
                                : server.metrics().requests_running.Value() == 1;
}

class CancelTest : public ::testing::TestWithParam<Where> {};

TEST_P(CancelTest, ClientCancelStopsTheWork) {
  TestServer server(StayingIn(GetParam()));
  grpc::ClientContext context;
  const auto reader = server.stub().Generate(&context, TextRequest("Hello", 1000));
  ASSERT_TRUE(Eventually([&] { return IsThere(server, GetParam()); }));
  v1::GenerateResponse message;
  if (GetParam() == Where::kDecode) {
    ASSERT_TRUE(reader->Read(&message));
  }
  context.TryCancel();
  while (reader->Read(&message)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server.ExpectIdle();
  EXPECT_EQ(server.metrics().requests_total(absl::StatusCode::kCancelled).Value(), 1);
}

TEST_P(CancelTest, DeadlineStopsTheWork) {
  TestServer server(StayingIn(GetParam()));
  const StreamResult result = server.Generate(TextRequest("Hello", 1000), absl::Milliseconds(200));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  server.ExpectIdle();
  EXPECT_EQ(server.metrics().requests_total(absl::StatusCode::kDeadlineExceeded).Value(), 1);
  const Metrics::DeadlineExpiredTotal& expired = server.metrics().deadline_expired_total;
  EXPECT_EQ(expired.queue.Value(), GetParam() == Where::kQueue);
  EXPECT_EQ(expired.prefill.Value(), GetParam() == Where::kPrefill);
  EXPECT_EQ(expired.decode.Value(), GetParam() == Where::kDecode);
  EXPECT_EQ(expired.prepare.Value(), 0);
}

TEST_P(CancelTest, AbortStopsTheWork) {
  TestServer server(StayingIn(GetParam()));
  v1::GenerateRequest request = TextRequest("Hello", 1000);
  request.set_request_id("x");
  grpc::ClientContext context;
  const auto reader = server.stub().Generate(&context, request);
  ASSERT_TRUE(Eventually([&] { return IsThere(server, GetParam()); }));
  v1::AbortRequest abort;
  abort.add_request_ids("x");
  v1::AbortResponse aborted;
  grpc::ClientContext abort_context;
  ASSERT_TRUE(server.stub().Abort(&abort_context, abort, &aborted).ok());
  EXPECT_EQ(aborted.aborted_request_ids_size(), 1);
  v1::GenerateResponse message, last;
  while (reader->Read(&message)) last = message;
  EXPECT_EQ(last.finished().reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_TRUE(reader->Finish().ok());
  server.ExpectIdle();
}

TEST_P(CancelTest, ClientWhoseConnectionBreaksStopsTheWork) {
  TestServer server(StayingIn(GetParam()));
  {
    auto channel = server.NewChannel();
    auto stub = v1::InferenceService::NewStub(channel);
    auto context = std::make_unique<grpc::ClientContext>();
    auto reader = stub->Generate(context.get(), TextRequest("Hello", 1000));
    ASSERT_TRUE(Eventually([&] { return IsThere(server, GetParam()); }));
    // Destroyed without Finish: the call and then the connection are torn down.
  }
  server.ExpectIdle();
  EXPECT_TRUE(Eventually(
      [&] { return server.metrics().requests_total(absl::StatusCode::kCancelled).Value() == 1; }));
}

INSTANTIATE_TEST_SUITE_P(Everywhere, CancelTest,
                         ::testing::Values(Where::kQueue, Where::kPrefill, Where::kDecode));

TEST(CancelWhilePreparingTest, DeadlineAndAbortBeforeTheEngine) {
  TestServer::Options options;
  options.preparer = {.num_threads = 1, .max_queued = 64};
  options.max_model_len = 60'000'000;
  TestServer server(options);
  // Big texts keep the only tokenizer thread busy.
  const v1::GenerateRequest big = TextRequest(std::string(48 << 20, 'x'), 0);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> readers;
  for (int i = 0; i < 4; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(server.stub().Generate(contexts.back().get(), big));
  }
  ASSERT_TRUE(Eventually([&] { return server.metrics().requests_preparing.Value() >= 3; }));
  const StreamResult late = server.Generate(TextRequest("late", 1), absl::Milliseconds(5));
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);

  for (auto& context : contexts) context->TryCancel();
  for (auto& reader : readers) {
    v1::GenerateResponse message;
    while (reader->Read(&message)) continue;
    reader->Finish();
  }
  server.ExpectIdle();
  EXPECT_TRUE(server.Generate(TextRequest("next", 1)).status.ok());
}

// `count` calls from a few clients; each meets a cancel or a deadline at a random time, or ends by
// itself.
void RandomEnds(TestServer& server, int count) {
  constexpr int kClients = 8;
  std::atomic<int> next = 0;
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937 random(client);
      for (int i = next++; i < count; i = next++) {
        grpc::ClientContext context;
        const auto pause = std::chrono::microseconds(random() % 20'000);
        const int kind = static_cast<int>(random() % 3);
        if (kind == 0) context.set_deadline(std::chrono::system_clock::now() + pause);
        v1::GenerateRequest request = TextRequest("Hello", static_cast<int>(random() % 40));
        const auto reader = server.stub().Generate(&context, request);
        v1::GenerateResponse message;
        if (kind == 1) {
          std::this_thread::sleep_for(pause);
          context.TryCancel();
        }
        while (reader->Read(&message)) continue;
        reader->Finish();
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST(RandomEndsTest, AThousandCancelsAndDeadlinesLeaveNothingBehind) {
  TestServer::Options options;
  options.engine.step = absl::Milliseconds(1);
  options.engine.max_running = 4;
  TestServer server(options);
  RandomEnds(server, 500);  // gRPC's caches fill up
  server.ExpectIdle();
  const int64_t before = LiveHeapBytes();
  RandomEnds(server, 1000);
  server.ExpectIdle();
  EXPECT_LT(LiveHeapBytes() - before, int64_t{1} << 20) << "bytes kept for 1,000 ended calls";
  double total = 0;
  for (int code = 0; code <= 16; ++code) {
    total += server.metrics().requests_total(static_cast<absl::StatusCode>(code)).Value();
  }
  // A call that is cancelled before it is sent never reaches the server.
  EXPECT_LE(total, 1500);
  EXPECT_GT(total, 1000);
  EXPECT_TRUE(server.Generate(TextRequest("next", 1)).status.ok());
}

}  // namespace
}  // namespace tokenbutler
