// What a Generate call streams when all is well, and the other calls, over a socket.
#include <set>
#include <thread>
#include <vector>

#include "tests/server/server_fixture.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

TEST(GenerateTest, StreamsChunksThenFinishedThenOk) {
  TestServer server;
  const StreamResult result = server.Generate(TextRequest("Hello", 3));
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.text(), "tok tok tok ");
  ASSERT_EQ(result.finished().size(), 1);
  EXPECT_TRUE(result.messages.back().has_finished());
  const v1::Finished finished = result.finished()[0];
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(finished.usage().prompt_tokens(), 6);  // BOS and five bytes
  EXPECT_EQ(finished.usage().completion_tokens(), 3);
  EXPECT_THAT(finished.request_id(), StartsWith("req-"));
  server.ExpectIdle();
}

TEST(GenerateTest, TheRequestIdIsInTheInitialMetadata) {
  TestServer server;
  grpc::ClientContext context;
  v1::GenerateRequest request = TextRequest("Hello", 1);
  request.set_request_id("mine");
  const auto reader = server.stub().Generate(&context, request);
  reader->WaitForInitialMetadata();
  const auto& metadata = context.GetServerInitialMetadata();
  const auto found = metadata.find("x-request-id");
  ASSERT_NE(found, metadata.end());
  EXPECT_EQ(std::string(found->second.data(), found->second.size()), "mine");
  v1::GenerateResponse message;
  while (reader->Read(&message)) continue;
  EXPECT_TRUE(reader->Finish().ok());
}

TEST(GenerateTest, ProgressAndPromptLogprobsComeFirst) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("abc", 2);
  request.mutable_output()->set_return_progress(true);
  request.mutable_output()->set_return_token_ids(true);
  request.mutable_logprobs()->set_top(2);
  request.mutable_logprobs()->set_include_prompt(true);
  const StreamResult result = server.Generate(request);
  ASSERT_TRUE(result.status.ok());
  ASSERT_GE(result.messages.size(), 4);
  EXPECT_EQ(result.messages[0].progress().total_tokens(), 4);
  ASSERT_TRUE(result.messages[1].has_prompt_logprobs());
  EXPECT_EQ(result.messages[1].prompt_logprobs().positions_size(), 3);
  EXPECT_EQ(result.messages[1].prompt_logprobs().positions(0).chosen().token(), "a");
  EXPECT_EQ(result.messages[1].prompt_logprobs().positions(0).top_size(), 2);
  ASSERT_TRUE(result.messages[2].has_chunk());
  EXPECT_EQ(result.messages[2].chunk().token_ids_size(),
            result.messages[2].chunk().logprobs_size());
}

TEST(GenerateTest, EveryIndexHasItsOwnFinished) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("abc", 5);
  request.mutable_sampling()->set_n(4);
  const StreamResult result = server.Generate(request);
  ASSERT_TRUE(result.status.ok());
  std::set<int> finished;
  for (const auto& message : result.messages) {
    if (message.has_chunk()) {
      EXPECT_FALSE(finished.count(message.chunk().index())) << "a chunk after finished";
    }
    if (message.has_finished()) {
      EXPECT_TRUE(finished.insert(message.finished().index()).second) << "finished twice";
    }
  }
  EXPECT_EQ(finished.size(), 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(result.text(i), "tok tok tok tok tok ");
}

TEST(GenerateTest, PrefillOnly) {
  TestServer server;
  const StreamResult result = server.Generate(TextRequest("Hello", 0));
  ASSERT_TRUE(result.status.ok());
  ASSERT_EQ(result.messages.size(), 1);
  EXPECT_EQ(result.finished()[0].usage().completion_tokens(), 0);
}

TEST(GenerateTest, ChatGoesThroughTheTemplate) {
  TestServer server;
  v1::GenerateRequest request;
  request.set_max_tokens(1);
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("Hi");
  ASSERT_TRUE(server.Generate(request).status.ok());
  const GenerationRequest seen = server.engine().last_request();
  EXPECT_EQ(ByteTokenizer().Decode(seen.prompt_token_ids, false), "user: Hi\nassistant: ");
  request.mutable_chat()->set_add_generation_prompt(false);
  ASSERT_TRUE(server.Generate(request).status.ok());
  EXPECT_EQ(ByteTokenizer().Decode(server.engine().last_request().prompt_token_ids, false),
            "user: Hi\n");
}

TEST(GenerateTest, TheEngineSeesTheDeadline) {
  TestServer server;
  const absl::Time before = absl::Now();
  ASSERT_TRUE(server.Generate(TextRequest("Hello", 1), absl::Seconds(50)).status.ok());
  const absl::Duration left = server.engine().last_request().deadline - before;
  EXPECT_GT(left, absl::Seconds(45));
  EXPECT_LT(left, absl::Seconds(55));
  ASSERT_TRUE(server.Generate(TextRequest("Hello", 1)).status.ok());
  EXPECT_EQ(server.engine().last_request().deadline, absl::InfiniteFuture());
}

TEST(GenerateTest, TwoHundredStreamsAtOnce) {
  TestServer::Options options;
  options.engine.step = absl::Milliseconds(1);
  TestServer server(options);
  constexpr int kStreams = 200;
  std::vector<StreamResult> results(kStreams);
  std::vector<std::thread> threads;
  for (int i = 0; i < kStreams; ++i) {
    threads.emplace_back(
        [&, i] { results[i] = server.Generate(TextRequest(std::string(1 + i, 'x'), 20)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kStreams; ++i) {
    ASSERT_TRUE(results[i].status.ok()) << i << ": " << results[i].status.error_message();
    EXPECT_EQ(results[i].text().size(), 20 * 4);
    EXPECT_EQ(results[i].finished().at(0).usage().prompt_tokens(), 2 + i);
  }
  server.ExpectIdle();
}

TEST(GenerateTest, APromptLargerThanGrpcsOwnLimitArrives) {
  TestServer::Options options;
  options.max_model_len = 3'000'000;
  TestServer server(options);
  v1::GenerateRequest request;
  request.set_max_tokens(1);
  for (int i = 0; i < 2'500'000; ++i) request.mutable_token_ids()->add_ids(200);
  ASSERT_GT(request.ByteSizeLong(), 4 << 20);
  const StreamResult result = server.Generate(request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.finished()[0].usage().prompt_tokens(), 2'500'000);
}

TEST(TokenizeTest, TextChatAndBack) {
  TestServer server;
  v1::TokenizeRequest request;
  request.set_text("hé");
  request.set_return_tokens(true);
  v1::TokenizeResponse response;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.stub().Tokenize(&context, request, &response).ok());
  }
  EXPECT_THAT(response.token_ids(), ElementsAre(256, 'h', 0xC3, 0xA9));
  EXPECT_THAT(response.tokens(), ElementsAre("<s>", "h", "\xC3", "\xA9"));

  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("Hi");
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.stub().Tokenize(&context, request, &response).ok());
  }
  EXPECT_EQ(response.prompt(), "user: Hi\nassistant: ");

  v1::DetokenizeRequest back;
  back.mutable_token_ids()->CopyFrom(response.token_ids());
  v1::DetokenizeResponse text;
  grpc::ClientContext context;
  ASSERT_TRUE(server.stub().Detokenize(&context, back, &text).ok());
  EXPECT_EQ(text.text(), response.prompt());
}

TEST(AbortTest, EndsTheStreamWithCancelledAndOk) {
  TestServer::Options options;
  options.engine.step = absl::Milliseconds(2);
  TestServer server(options);
  v1::GenerateRequest request = TextRequest("Hello", 900);
  request.set_request_id("victim");
  request.mutable_sampling()->set_n(2);
  grpc::ClientContext context;
  const auto reader = server.stub().Generate(&context, request);
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));

  v1::AbortRequest abort;
  abort.add_request_ids("victim");
  abort.add_request_ids("nobody");
  v1::AbortResponse aborted;
  grpc::ClientContext abort_context;
  ASSERT_TRUE(server.stub().Abort(&abort_context, abort, &aborted).ok());
  EXPECT_THAT(aborted.aborted_request_ids(), ElementsAre("victim"));

  int cancelled = 0;
  while (reader->Read(&message)) {
    if (message.has_finished()) {
      EXPECT_EQ(message.finished().reason(), v1::FINISH_REASON_CANCELLED);
      ++cancelled;
    }
  }
  EXPECT_EQ(cancelled, 2);
  EXPECT_TRUE(reader->Finish().ok());
  // Idempotent.
  grpc::ClientContext again;
  ASSERT_TRUE(server.stub().Abort(&again, abort, &aborted).ok());
  EXPECT_EQ(aborted.aborted_request_ids_size(), 0);
  server.ExpectIdle();
}

TEST(InfoTest, ModelServerAndLoad) {
  TestServer::Options options;
  options.service.build = {.version = "1.2.3", .torch = "2.11", .cuda = "none", .isa = "avx2"};
  options.service.configuration = {{"--model", "m.gguf"}};
  options.attention = DefaultParams(AttentionPolicy::kSketch);
  options.attention.keys = KeyFormat::kBits2;
  TestServer server(options);
  v1::GetModelInfoResponse model;
  v1::GetServerInfoResponse info;
  v1::GetLoadResponse load;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.stub().GetModelInfo(&context, {}, &model).ok());
  }
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server.stub().GetServerInfo(&context, {}, &info).ok());
  }
  EXPECT_EQ(model.model().name(), "fake");
  EXPECT_EQ(model.model().vocab_size(), ByteTokenizer::kVocabSize);
  EXPECT_EQ(model.model().max_model_len(), 1000);
  EXPECT_THAT(model.model().eos_token_ids(), ElementsAre(ByteTokenizer::kEos));
  EXPECT_EQ(info.version(), "1.2.3");
  EXPECT_EQ(info.isa(), "avx2");
  EXPECT_EQ(info.state(), v1::SERVER_STATE_SERVING);
  EXPECT_EQ(info.configuration().at("--model"), "m.gguf");
  EXPECT_EQ(info.attention().policy(), "sketch");
  EXPECT_EQ(info.attention().token_budget(), 4096);
  EXPECT_EQ(info.attention().keys(), "bits2");
  EXPECT_EQ(info.offload().backend(), "direct");
  EXPECT_FALSE(info.offload().link_is_modelled());

  server.engine().Hold(true);
  grpc::ClientContext held;
  const auto reader = server.stub().Generate(&held, TextRequest("Hello", 1));
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    return server.stub().GetLoad(&context, {}, &load).ok() && load.requests_waiting() == 1;
  }));
  EXPECT_GT(load.kv_capacity_bytes(), 0);
  server.engine().Hold(false);
  v1::GenerateResponse message;
  while (reader->Read(&message)) continue;
  EXPECT_TRUE(reader->Finish().ok());
}

}  // namespace
}  // namespace tokenbutler
