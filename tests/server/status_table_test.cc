// One test per row of the status table of docs/operations.md, over a socket.
#include "base/status.h"
#include "base/status_details.h"
#include "tests/server/server_fixture.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

void ExpectServesNext(TestServer& server) {
  EXPECT_TRUE(server.Generate(TextRequest("next", 1)).status.ok());
}

TEST(StatusTableTest, PromptLongerThanTheContextIsInvalid) {
  TestServer server;
  // As ids, as text whose tokens are too many, and as text too long to be tokenised at all.
  v1::GenerateRequest ids;
  for (int i = 0; i < 1000; ++i) ids.mutable_token_ids()->add_ids(65);
  for (const v1::GenerateRequest& request :
       {ids, TextRequest(std::string(1000, 'x'), 1), TextRequest(std::string(5000, 'x'), 1)}) {
    const StreamResult result = server.Generate(request);
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_TRUE(Detail<google::rpc::BadRequest>(result.status));
    EXPECT_EQ(result.messages.size(), 0);
  }
  EXPECT_THAT(server.Generate(ids).status.error_message(),
              ::testing::AllOf(HasSubstr("1000"), HasSubstr("999")));
  ExpectServesNext(server);
}

TEST(StatusTableTest, FullQueueIsResourceExhaustedWithRetryInfo) {
  TestServer server;
  server.engine().RefuseWith(
      WithRetryDelay(ResourceExhaustedError("4 requests wait, at most 4 may"), absl::Seconds(3)));
  const StreamResult result = server.Generate(TextRequest("Hello", 1));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto retry = Detail<google::rpc::RetryInfo>(result.status);
  ASSERT_TRUE(retry);
  EXPECT_EQ(retry->retry_delay().seconds(), 3);
  server.engine().RefuseWith(absl::OkStatus());
  ExpectServesNext(server);
}

TEST(StatusTableTest, FullTokenizerQueueIsResourceExhaustedWithRetryInfo) {
  TestServer::Options options;
  options.preparer = {.num_threads = 1, .max_queued = 1};
  options.max_model_len = 40'000'000;
  TestServer server(options);
  // Big texts keep the only thread busy; sooner or later one finds the queue full.
  const v1::GenerateRequest big = TextRequest(std::string(8 << 20, 'x'), 0);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> readers;
  for (int i = 0; i < 6; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(server.stub().Generate(contexts.back().get(), big));
  }
  int refused = 0;
  for (auto& reader : readers) {
    v1::GenerateResponse message;
    while (reader->Read(&message)) continue;
    const grpc::Status status = reader->Finish();
    if (status.ok()) continue;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_TRUE(Detail<google::rpc::RetryInfo>(status));
    ++refused;
  }
  EXPECT_GE(refused, 1);
  server.ExpectIdle();
  ExpectServesNext(server);
}

TEST(StatusTableTest, NeverFittingIsResourceExhaustedWithoutRetryInfo) {
  TestServer server;
  server.engine().RefuseWith(
      ResourceExhaustedError("the request needs 5000 bytes of KV cache, there are 4000 in all"));
  const StreamResult result = server.Generate(TextRequest("Hello", 1));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_FALSE(Detail<google::rpc::RetryInfo>(result.status));
  EXPECT_THAT(result.status.error_message(),
              ::testing::AllOf(HasSubstr("5000"), HasSubstr("4000")));
}

TEST(StatusTableTest, FittingLaterWaitsInTheQueue) {
  TestServer::Options options;
  options.engine.max_running = 1;
  options.engine.step = absl::Milliseconds(2);
  TestServer server(options);
  grpc::ClientContext first_context;
  const auto first = server.stub().Generate(&first_context, TextRequest("first", 50));
  v1::GenerateResponse message;
  ASSERT_TRUE(first->Read(&message));
  grpc::ClientContext second_context;
  const auto second = server.stub().Generate(&second_context, TextRequest("second", 2));
  EXPECT_TRUE(Eventually([&] { return server.metrics().requests_waiting.Value() == 1; }));
  while (first->Read(&message)) continue;
  EXPECT_TRUE(first->Finish().ok());
  while (second->Read(&message)) continue;
  EXPECT_TRUE(second->Finish().ok());
}

TEST(StatusTableTest, LoadingIsUnavailableWithRetryInfo) {
  TestServer::Options options;
  options.serving = false;
  TestServer server(options);
  const StreamResult result = server.Generate(TextRequest("Hello", 1));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Detail<google::rpc::RetryInfo>(result.status));
  EXPECT_THAT(result.status.error_message(), HasSubstr("loading"));
  grpc::ClientContext model_context, info_context, tokenize_context;
  v1::GetModelInfoResponse model;
  EXPECT_EQ(server.stub().GetModelInfo(&model_context, {}, &model).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  v1::TokenizeResponse tokens;
  EXPECT_EQ(server.stub().Tokenize(&tokenize_context, {}, &tokens).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(server.stub().GetServerInfo(&info_context, {}, &info).ok());
  EXPECT_EQ(info.state(), v1::SERVER_STATE_LOADING);
  server.StartServing();
  ExpectServesNext(server);
}

TEST(StatusTableTest, DrainingIsUnavailable) {
  TestServer server;
  server.StartDraining();
  const StreamResult result = server.Generate(TextRequest("Hello", 1));
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(result.status.error_message(), HasSubstr("draining"));
  EXPECT_FALSE(Detail<google::rpc::RetryInfo>(result.status));
}

TEST(StatusTableTest, UnknownModelIsNotFound) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("Hello", 1);
  request.set_model("other");
  const StreamResult result = server.Generate(request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(result.status.error_message(),
              ::testing::AllOf(HasSubstr("other"), HasSubstr("fake")));
  request.set_model("fake");
  EXPECT_TRUE(server.Generate(request).status.ok());
}

TEST(StatusTableTest, DuplicateRequestIdIsAlreadyExistsAndHarmsNobody) {
  TestServer server;
  server.engine().Hold(true);
  v1::GenerateRequest request = TextRequest("Hello", 2);
  request.set_request_id("twice");
  grpc::ClientContext context;
  const auto first = server.stub().Generate(&context, request);
  ASSERT_TRUE(Eventually([&] { return server.engine().num_submitted() == 1; }));
  for (int i = 0; i < 3; ++i) {
    const StreamResult second = server.Generate(request);
    EXPECT_EQ(second.status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
    EXPECT_THAT(second.status.error_message(), HasSubstr("twice"));
  }
  server.engine().Hold(false);
  v1::GenerateResponse message;
  while (first->Read(&message)) continue;
  EXPECT_TRUE(first->Finish().ok());
  server.ExpectIdle();
  EXPECT_TRUE(server.Generate(request).status.ok()) << "the id is free again";
}

TEST(StatusTableTest, KnownButUnsupportedIsUnimplementedNamingTheField) {
  TestServer server;
  const auto expect = [&](const char* field, auto set) {
    v1::GenerateRequest request = TextRequest("Hello", 1);
    set(request);
    const StreamResult result = server.Generate(request);
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << field;
    EXPECT_THAT(result.status.error_message(), HasSubstr(field));
  };
  using Request = v1::GenerateRequest;
  expect("session_name", [](Request& r) { r.set_session_name("s"); });
  expect("cache.use_prefix_cache",
         [](Request& r) { r.mutable_cache()->set_use_prefix_cache(true); });
  expect("cache.salt", [](Request& r) { r.mutable_cache()->set_salt("s"); });
  v1::GenerateRequest dense = TextRequest("Hello", 1);
  dense.mutable_attention()->set_policy("dense");
  dense.mutable_cache()->set_use_prefix_cache(false);
  EXPECT_TRUE(server.Generate(dense).status.ok());
}

TEST(StatusTableTest, EngineFailureIsInternalAndTheServerLivesOn) {
  TestServer server;
  server.engine().RefuseWith(InternalError("the step failed"));
  EXPECT_EQ(server.Generate(TextRequest("Hello", 1)).status.error_code(),
            grpc::StatusCode::INTERNAL);
  server.engine().RefuseWith(absl::OkStatus());
  ExpectServesNext(server);
}

}  // namespace
}  // namespace tokenbutler
