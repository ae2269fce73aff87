// A client that stops reading costs itself its call, and nobody else anything.
#include <thread>

#include "tests/server/server_fixture.h"

namespace tokenbutler {
namespace {

TestServer::Options Chatty() {
  TestServer::Options options;
  options.engine.token_text = std::string(8 << 10, 'x');  // fills the flow-control window soon
  options.max_model_len = 100'000;
  options.service.stall_limit = absl::Milliseconds(300);
  return options;
}

TEST(SlowReaderTest, IsAbortedAfterTheStallLimitAndOthersNeverWait) {
  TestServer::Options options = Chatty();
  options.engine.step = absl::Milliseconds(1);
  TestServer server(options);
  const auto channel = server.NewChannel();
  const auto lazy_stub = v1::InferenceService::NewStub(channel);
  grpc::ClientContext context;
  const auto lazy = lazy_stub->Generate(&context, TextRequest("lazy", 90'000));
  v1::GenerateResponse message;
  ASSERT_TRUE(lazy->Read(&message));  // and never again

  const absl::Time start = absl::Now();
  EXPECT_TRUE(server.Generate(TextRequest("busy", 5)).status.ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));

  EXPECT_TRUE(Eventually([&] { return server.metrics().slow_reader_aborts_total.Value() == 1; }));
  server.ExpectIdle();
  EXPECT_EQ(server.metrics().slow_reader_aborts_total.Value(), 1);
  while (lazy->Read(&message)) continue;
  EXPECT_EQ(lazy->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(SlowReaderTest, IsAbortedWhenItsQueueIsFull) {
  TestServer::Options options = Chatty();
  options.service.stall_limit = absl::Hours(1);
  options.service.max_pending_bytes = 4 << 20;
  TestServer server(options);
  const auto channel = server.NewChannel();
  const auto lazy_stub = v1::InferenceService::NewStub(channel);
  grpc::ClientContext context;
  const auto lazy = lazy_stub->Generate(&context, TextRequest("lazy", 90'000));
  EXPECT_TRUE(Eventually([&] { return server.metrics().slow_reader_aborts_total.Value() == 1; }));
  server.ExpectIdle();
  v1::GenerateResponse message;
  while (lazy->Read(&message)) continue;
  EXPECT_EQ(lazy->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(SlowReaderTest, DeltasMergeForOneThatCatchesUpInTime) {
  TestServer::Options options = Chatty();
  options.engine.token_text = std::string(1 << 10, 'y');
  options.service.stall_limit = absl::Seconds(30);
  TestServer server(options);
  grpc::ClientContext context;
  const auto reader = server.stub().Generate(&context, TextRequest("slow", 4'000));
  ASSERT_TRUE(Eventually([&] { return server.metrics().finished_total.length.Value() == 1; }));
  size_t bytes = 0;
  int num_messages = 0;
  v1::GenerateResponse message;
  bool finished = false;
  while (reader->Read(&message)) {
    ++num_messages;
    bytes += message.chunk().text().size();
    EXPECT_LT(message.ByteSizeLong(), 4 << 20) << "more than a client receives by default";
    finished = message.has_finished();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(finished);
  EXPECT_EQ(bytes, size_t{4'000} << 10);
  EXPECT_LT(num_messages, 2'000) << "4,000 deltas did not merge";
  EXPECT_EQ(server.metrics().slow_reader_aborts_total.Value(), 0);
}

}  // namespace
}  // namespace tokenbutler
