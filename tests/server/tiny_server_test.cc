// The real program on a tiny model that the test writes itself: every kind of call at once, then
// the end. It needs nothing from the cache, so that sanitized builds run it too: a leak, or an
// access to freed memory on any of the server's threads, makes the exit code not 0.
#include <signal.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/server/server_fixture.h"
#include "tests/server/server_process.h"
#include "tests/server/tiny_predictor_file.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/tiny_model.h"

namespace tokenbutler {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TinyServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteTinyModel(model_path());
    Start({});
  }
  std::string model_path() const { return (folder_.path() / "tiny").string(); }

  // A server with these flags, in place of the one before.
  void Start(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--kv-capacity", "16MiB", "--shutdown-grace", "60s"});
    server_ = std::make_unique<ServerProcess>(model_path(), flags);
    ASSERT_TRUE(server_->WaitUntilServing()) << server_->process().output();
    stub_ = v1::InferenceService::NewStub(server_->NewChannel());
  }

  // Reads the stream to its end; cancels it after `cancel_after` messages if that is not 0.
  StreamResult Generate(const v1::GenerateRequest& request,
                        absl::Duration timeout = absl::Minutes(3), size_t cancel_after = 0) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
    StreamResult result;
    const auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
      result.messages.push_back(message);
      if (result.messages.size() == cancel_after) context.TryCancel();
    }
    result.status = reader->Finish();
    return result;
  }

  void ExpectIdle() {
    for (const char* gauge :
         {"open_streams", "requests_running", "requests_waiting", "kv_host_used_bytes"}) {
      EXPECT_TRUE(Eventually([&] { return server_->Metric(gauge) == 0; })) << gauge;
    }
  }

  void ExpectCleanEnd() {
    EXPECT_EQ(server_->process().Wait(), 0) << server_->process().output();
    EXPECT_THAT(
        server_->process().output(),
        AllOf(HasSubstr("stopped"), Not(HasSubstr("Sanitizer")), Not(HasSubstr("runtime error"))));
  }

  TemporaryFolder folder_;
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
};

v1::GenerateRequest Endless(const std::string& text, int max_tokens) {
  v1::GenerateRequest request = TextRequest(text, max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

v1::GenerateRequest Chat(const std::string& content) {
  v1::GenerateRequest request;
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content(content);
  request.set_max_tokens(30);
  return request;
}

v1::GenerateRequest Ids(int num_prompt, int max_tokens) {
  v1::GenerateRequest request = Endless("", max_tokens);
  for (int i = 0; i < num_prompt; ++i) request.mutable_token_ids()->add_ids(10 + i * 7 % 600);
  request.mutable_output()->set_return_token_ids(true);
  request.mutable_output()->set_return_progress(true);
  return request;
}

v1::GenerateRequest SeveralWithLogprobs() {
  v1::GenerateRequest request = Endless("How many owls are there?", 20);
  request.mutable_sampling()->set_n(3);
  request.mutable_sampling()->set_temperature(1.5);
  request.mutable_sampling()->set_top_p(0.95f);
  request.mutable_sampling()->set_top_k(200);
  request.mutable_sampling()->set_repetition_penalty(1.2f);
  request.mutable_sampling()->set_frequency_penalty(0.3f);
  (*request.mutable_sampling()->mutable_logit_bias())[42] = -5;
  request.mutable_logprobs()->set_top(5);
  request.mutable_logprobs()->set_include_prompt(true);
  request.mutable_stop()->add_strings("never said");
  return request;
}

v1::GenerateRequest Unservable() {
  v1::GenerateRequest request = TextRequest("Hello", 5);
  request.mutable_sampling()->set_temperature(-1);
  return request;
}

TEST_F(TinyServerTest, ManyKindsOfCallsAtOnce) {
  // Two clients of each kind, several calls each, all side by side.
  struct Kind {
    v1::GenerateRequest request;
    grpc::StatusCode ends_with = grpc::StatusCode::OK;
    absl::Duration timeout = absl::Minutes(3);
    size_t cancel_after = 0;
  };
  const std::vector<Kind> kinds = {
      {.request = Endless("Once upon a time", 60)},
      {.request = Chat("Grüße, 世界! <|im_end|> 🦉")},
      {.request = Ids(300, 40)},
      {.request = SeveralWithLogprobs()},
      {.request = TextRequest("Only the prompt", 0)},
      {.request = Endless("Cancelled", 480),
       .ends_with = grpc::StatusCode::CANCELLED,
       .cancel_after = 3},
      {.request = Endless("Too late", 480),
       .ends_with = grpc::StatusCode::DEADLINE_EXCEEDED,
       .timeout = absl::Milliseconds(5)},
      {.request = Unservable(), .ends_with = grpc::StatusCode::INVALID_ARGUMENT},
  };
  constexpr int kCallsEach = 3;
  std::vector<std::thread> clients;
  for (size_t i = 0; i < 2 * kinds.size(); ++i) {
    clients.emplace_back([this, &kind = kinds[i / 2]] {
      for (int call = 0; call < kCallsEach; ++call) {
        const StreamResult result = Generate(kind.request, kind.timeout, kind.cancel_after);
        // A completion may be quicker than its cancellation.
        const bool quicker = kind.cancel_after > 0 && result.status.ok();
        EXPECT_TRUE(quicker || result.status.error_code() == kind.ends_with)
            << kind.request.ShortDebugString() << "\n"
            << result.status.error_code() << ": " << result.status.error_message();
        if (!result.status.ok()) continue;
        for (const v1::Finished& finished : result.finished()) {
          EXPECT_NE(finished.reason(), v1::FINISH_REASON_CANCELLED);
        }
        EXPECT_EQ(result.finished().size(),
                  static_cast<size_t>(std::max(1, kind.request.sampling().n())));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ExpectIdle();
  EXPECT_GE(server_->Metric("requests_total{code=\"OK\"}"), 5 * 2 * kCallsEach);
  EXPECT_GT(server_->Metric("generation_tokens_total"), 0);
  EXPECT_EQ(server_->Metric("requests_total{code=\"INVALID_ARGUMENT\"}"), 2 * kCallsEach);
  EXPECT_EQ(server_->Metric("requests_total{code=\"INTERNAL\"}"), 0);
  server_->process().Signal(SIGTERM);
  ExpectCleanEnd();
}

TEST_F(TinyServerTest, TheOtherMethods) {
  const std::string text = "Grüße, 世界! <|im_end|>";
  v1::TokenizeRequest tokenize;
  tokenize.set_text(text);
  tokenize.set_return_tokens(true);
  v1::TokenizeResponse tokens;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Tokenize(&context, tokenize, &tokens).ok());
  }
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse back;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Detokenize(&context, detokenize, &back).ok());
  }
  EXPECT_EQ(back.text(), text);
  v1::GetModelInfoResponse info;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->GetModelInfo(&context, {}, &info).ok());
  }
  EXPECT_EQ(info.model().name(), "tiny");
  EXPECT_EQ(info.model().max_model_len(), kTinyModelLen);
  EXPECT_EQ(info.model().vocab_size(), kTinyModelVocab);

  v1::GenerateRequest request = Endless("Aborted", 400);
  request.set_request_id("to-abort");
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse message, last;
  ASSERT_TRUE(reader->Read(&message));
  v1::AbortRequest abort;
  abort.add_request_ids("to-abort");
  v1::AbortResponse aborted;
  grpc::ClientContext abort_context;
  ASSERT_TRUE(stub_->Abort(&abort_context, abort, &aborted).ok());
  while (reader->Read(&message)) last = message;
  EXPECT_TRUE(reader->Finish().ok());
  if (aborted.aborted_request_ids_size() == 1) {  // it may have been quicker
    EXPECT_EQ(last.finished().reason(), v1::FINISH_REASON_CANCELLED);
  }
  ExpectIdle();
  server_->process().Signal(SIGTERM);
  ExpectCleanEnd();
}

TEST_F(TinyServerTest, FindsThePredictorOfItsModel) {
  const std::string predictor = (folder_.path() / "any name.safetensors").string();
  WriteTinyPredictor(predictor, model_path());
  Start({"--policy", "tokenbutler", "--predictor-dir", folder_.path().string()});
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.predictor().path(), predictor);
  EXPECT_THAT(info.predictor().reason(), testing::HasSubstr("found by the digest"));
  server_->process().Signal(SIGTERM);
  ExpectCleanEnd();
}

// The learned policy from a file to the text, and requests that want another one.
TEST_F(TinyServerTest, ServesByThePredictorOfAFile) {
  const std::string predictor = (folder_.path() / "predictor.safetensors").string();
  WriteTinyPredictor(predictor, model_path());
  constexpr int kBudget = 64;
  Start({"--policy", "tokenbutler", "--predictor", predictor, "--token-budget",
         std::to_string(kBudget), "--sink-tokens", "4", "--local-window", "16", "--block-size",
         "16"});
  {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    ASSERT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());
    EXPECT_EQ(info.attention().policy(), "tokenbutler");
    EXPECT_EQ(info.attention().token_budget(), kBudget);
    EXPECT_EQ(info.predictor().path(), predictor);
    EXPECT_EQ(info.predictor().kind(), "tokenbutler");
    EXPECT_THAT(info.predictor().reason(), testing::HasSubstr("--predictor names it"));
  }
  constexpr int kPrompt = 200;
  v1::GenerateRequest request = Ids(kPrompt, 40);
  request.mutable_sampling()->set_temperature(0);
  const auto attended = [](const StreamResult& result) {
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.num_tokens(), 40);
    EXPECT_FALSE(result.text().empty());
    const v1::Finished finished = result.finished().at(0);
    return finished.has_offload() ? finished.offload().mean_tokens_attended() : -1;
  };
  const StreamResult served = Generate(request);
  EXPECT_EQ(attended(served), kBudget);

  request.mutable_attention()->set_policy("dense");
  const StreamResult dense = Generate(request);
  EXPECT_EQ(attended(dense), -1);
  EXPECT_NE(served.text(), dense.text()) << "nothing was left out";

  request.mutable_attention()->set_policy("sketch");
  EXPECT_EQ(attended(Generate(request)), kBudget);

  // The same policy with room for everything is dense attention.
  request.mutable_attention()->set_policy("tokenbutler");
  request.mutable_attention()->set_token_budget(kTinyModelLen);
  const StreamResult all = Generate(request);
  EXPECT_GT(attended(all), kPrompt);
  EXPECT_EQ(all.text(), dense.text());
  // And the server's own policy is what it was.
  request.clear_attention();
  EXPECT_EQ(Generate(request).text(), served.text());
  ExpectIdle();
  server_->process().Signal(SIGTERM);
  ExpectCleanEnd();
}

// A terminal that closes, or a log rotation that signals every process, must not cut streams off.
TEST_F(TinyServerTest, SighupIsIgnoredAndSigtermLetsStreamsFinish) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Endless("Once upon a time", 480));
  StreamResult result;
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  result.messages.push_back(message);
  server_->process().Signal(SIGHUP);
  EXPECT_FALSE(server_->process().Wait(absl::Milliseconds(200)));
  EXPECT_TRUE(Generate(TextRequest("after SIGHUP", 3)).status.ok());
  server_->process().Signal(SIGTERM);
  while (reader->Read(&message)) result.messages.push_back(message);
  result.status = reader->Finish();
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_EQ(result.num_tokens(), 480);
  ExpectCleanEnd();
}

}  // namespace
}  // namespace tokenbutler
