// The steps of a drain, one by one; tests/server/server_binary_test.cc sends the real signal.
#include <thread>

#include "tests/server/server_fixture.h"

namespace tokenbutler {
namespace {

TEST(DrainTest, RunningStreamsGoOnAndNewOnesAreRefused) {
  TestServer::Options options;
  options.engine.step = absl::Milliseconds(2);
  TestServer server(options);
  grpc::ClientContext context;
  const auto running = server.stub().Generate(&context, TextRequest("Hello", 100));
  v1::GenerateResponse message;
  ASSERT_TRUE(running->Read(&message));
  server.StartDraining();
  EXPECT_EQ(server.Generate(TextRequest("late", 1)).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(server.streams().WaitUntilEmpty(absl::Milliseconds(1)));
  bool finished = false;
  while (running->Read(&message)) finished = message.has_finished();
  EXPECT_TRUE(running->Finish().ok());
  EXPECT_TRUE(finished);
  EXPECT_TRUE(server.streams().WaitUntilEmpty(absl::Seconds(10)));
}

TEST(DrainTest, WhatIsLeftAfterTheGracePeriodEndsUnavailable) {
  TestServer::Options options;
  options.engine.step = absl::Milliseconds(2);
  TestServer server(options);
  grpc::ClientContext context, queued_context;
  const auto running = server.stub().Generate(&context, TextRequest("Hello", 900));
  v1::GenerateResponse message;
  ASSERT_TRUE(running->Read(&message));
  server.StartDraining();
  EXPECT_FALSE(server.streams().WaitUntilEmpty(absl::Milliseconds(20)));
  server.streams().EndAll(absl::UnavailableError("the grace period is over"));
  while (running->Read(&message)) continue;
  const grpc::Status status = running->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("grace period"));
  EXPECT_TRUE(server.streams().WaitUntilEmpty(absl::Seconds(10)));
  server.ExpectIdle();
}

TEST(DrainTest, AServerGoesAwayWithStreamsOpen) {
  TestServer::Options options;
  options.engine.step = absl::Milliseconds(2);
  auto server = std::make_unique<TestServer>(options);
  const auto stub = v1::InferenceService::NewStub(server->NewChannel());
  grpc::ClientContext context;
  const auto running = stub->Generate(&context, TextRequest("Hello", 900));
  v1::GenerateResponse message;
  ASSERT_TRUE(running->Read(&message));
  server.reset();
  while (running->Read(&message)) continue;
  EXPECT_EQ(running->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace tokenbutler
