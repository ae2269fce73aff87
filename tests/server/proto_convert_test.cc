#include "server/proto_convert.h"

#include <cmath>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/testing/byte_tokenizer.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class ProtoConvertTest : public ::testing::Test {
 protected:
  ProtoConvertTest() {
    model_.name = "fake";
    model_.config.vocab_size = ByteTokenizer::kVocabSize;
    model_.max_model_len = 100;
    model_.max_num_seqs = 8;
    model_.max_text_bytes = 1000;
    model_.tokenizer = &tokenizer_;
  }

  GenerateCall Convert(const std::string& text_proto) {
    v1::GenerateRequest message;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text_proto, &message));
    auto call = ToGenerateCall(message, model_);
    EXPECT_TRUE(call.ok()) << call.status();
    return call.ok() ? *std::move(call) : GenerateCall();
  }

  ByteTokenizer tokenizer_;
  ServedModel model_;
};

TEST_F(ProtoConvertTest, UnsetFieldsGetTheDefaultsOfRequestH) {
  const GenerateCall call = Convert("text: 'x'");
  const SamplingParams defaults;
  EXPECT_EQ(std::get<std::string>(call.prompt.prompt), "x");
  EXPECT_TRUE(call.prompt.add_special_tokens);
  EXPECT_FALSE(call.prompt.parse_special_tokens);
  EXPECT_EQ(call.request.sampling.temperature, defaults.temperature);
  EXPECT_EQ(call.request.sampling.top_p, defaults.top_p);
  EXPECT_EQ(call.request.sampling.typical_p, defaults.typical_p);
  EXPECT_EQ(call.request.sampling.repetition_penalty, defaults.repetition_penalty);
  EXPECT_EQ(call.request.sampling.n, 1);
  EXPECT_FALSE(call.request.sampling.seed);
  EXPECT_FALSE(call.request.logprobs.top);
  EXPECT_TRUE(call.request.output.skip_special_tokens);
  EXPECT_EQ(call.request.output.stream_interval, 1);
  EXPECT_EQ(call.request.max_tokens, model_.max_model_len);  // until the context is full
}

TEST_F(ProtoConvertTest, ZeroIsNotUnset) {
  const GenerateCall call = Convert(R"(
      token_ids { ids: [5] } max_tokens: 0 sampling { temperature: 0 seed: 0 }
      logprobs { top: 0 } output { skip_special_tokens: false })");
  EXPECT_EQ(call.request.max_tokens, 0);
  EXPECT_EQ(call.request.sampling.temperature, 0);
  EXPECT_EQ(call.request.sampling.seed, 0);
  EXPECT_EQ(call.request.logprobs.top, 0);
  EXPECT_FALSE(call.request.output.skip_special_tokens);
}

TEST_F(ProtoConvertTest, EveryFieldArrives) {
  const GenerateCall call = Convert(R"(
      request_id: "a.b_c:d-9" model: "fake" token_ids { ids: [1, 257] }
      sampling { temperature: 0.5 top_p: 0.25 top_k: 40 min_p: 0.125 typical_p: 0.75
                 repetition_penalty: 1.5 presence_penalty: -2 frequency_penalty: 2
                 logit_bias { key: 9 value: -100 } logit_bias { key: 3 value: 100 }
                 seed: 18446744073709551615 n: 8 min_tokens: 4 }
      max_tokens: 7
      stop { strings: ["a", "b"] token_ids: [5] ignore_eos: true include_in_output: true }
      logprobs { top: 20 include_prompt: true }
      output { return_token_ids: true return_progress: true stream_interval: 3 }
      priority: -1000 attention { policy: "dense" } cache { use_prefix_cache: false })");
  EXPECT_EQ(call.request.request_id, "a.b_c:d-9");
  EXPECT_THAT(std::get<std::vector<int32_t>>(call.prompt.prompt), ElementsAre(1, 257));
  const SamplingParams& sampling = call.request.sampling;
  EXPECT_EQ(sampling.temperature, 0.5f);
  EXPECT_EQ(sampling.top_p, 0.25f);
  EXPECT_EQ(sampling.top_k, 40);
  EXPECT_EQ(sampling.min_p, 0.125f);
  EXPECT_EQ(sampling.typical_p, 0.75f);
  EXPECT_EQ(sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(sampling.presence_penalty, -2);
  EXPECT_EQ(sampling.frequency_penalty, 2);
  EXPECT_THAT(sampling.logit_bias, ElementsAre(Pair(3, 100), Pair(9, -100)));
  EXPECT_EQ(sampling.seed, UINT64_MAX);
  EXPECT_EQ(sampling.n, 8);
  EXPECT_EQ(sampling.min_tokens, 4);
  EXPECT_EQ(call.request.max_tokens, 7);
  EXPECT_THAT(call.request.stop.strings, ElementsAre("a", "b"));
  EXPECT_THAT(call.request.stop.token_ids, ElementsAre(5));
  EXPECT_TRUE(call.request.stop.ignore_eos);
  EXPECT_TRUE(call.request.stop.include_in_output);
  EXPECT_EQ(call.request.logprobs.top, 20);
  EXPECT_TRUE(call.request.logprobs.include_prompt);
  EXPECT_TRUE(call.request.output.return_token_ids);
  EXPECT_TRUE(call.request.output.return_progress);
  EXPECT_EQ(call.request.output.stream_interval, 3);
  EXPECT_EQ(call.request.priority, -1000);
}

TEST_F(ProtoConvertTest, AttentionComesFromTheServerUnlessTheRequestSaysSo) {
  model_.attention = DefaultParams(AttentionPolicy::kSketch);
  model_.attention.token_budget = 2000;
  EXPECT_EQ(Convert("text: 'x'").request.attention.policy, AttentionPolicy::kSketch);
  EXPECT_EQ(Convert("text: 'x'").request.attention.token_budget, 2000);
  const AttentionParams dense =
      Convert("text: 'x' attention { policy: 'dense' }").request.attention;
  EXPECT_FALSE(dense.sparse());
  const AttentionParams all = Convert(R"(
      text: 'x' attention { policy: "tokenbutler" token_budget: 1000 sink_tokens: 10
        local_window: 20 prediction_interval: 4 candidates: 3000 neighbours: 1 top_p: 0.5
        query: "lookahead" keys: "bits4" scan_fraction: 0.125 dense_first_layer: true
        misses: "deferred" })")
                                  .request.attention;
  EXPECT_EQ(all.policy, AttentionPolicy::kTokenButler);
  EXPECT_EQ(all.token_budget, 1000);
  EXPECT_EQ(all.sink_tokens, 10);
  EXPECT_EQ(all.local_window, 20);
  EXPECT_EQ(all.prediction_interval, 4);
  EXPECT_EQ(all.candidates, 3000);
  EXPECT_EQ(all.neighbours, 1);
  EXPECT_EQ(all.top_p, 0.5f);
  EXPECT_EQ(all.query, QuerySource::kLookahead);
  EXPECT_EQ(all.keys, KeyFormat::kBits4);
  EXPECT_EQ(all.scan_fraction, 0.125f);
  EXPECT_TRUE(all.dense_first_layer);
  EXPECT_EQ(all.misses, MissRule::kDeferred);
  EXPECT_EQ(Convert("text: 'x' attention { setting: 'fast' }").request.attention.scan_fraction,
            WithSetting(AttentionSetting::kFast, model_.attention).scan_fraction);
}

TEST_F(ProtoConvertTest, AttentionGoesThereAndBack) {
  for (const char* policy : {"dense", "tokenbutler", "sketch", "pca", "quest", "exact", "snapkv",
                             "h2o", "streaming_llm", "xkv", "random"}) {
    AttentionParams params = DefaultParams(*ParsePolicy(policy));
    params.misses = MissRule::kDeferred;
    const v1::AttentionOptions message = ToProto(params);
    EXPECT_EQ(message.policy(), policy);
    EXPECT_EQ(message.has_token_budget(), params.sparse());
    const auto options = ToAttentionOptions(message);
    ASSERT_TRUE(options.ok()) << options.status();
    const auto back = ResolveAttention(AttentionParams{}, *options);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(ToProto(*back).SerializeAsString(), message.SerializeAsString()) << policy;
  }
}

TEST_F(ProtoConvertTest, FinishedTellsWhatSparseAttentionDid) {
  FinishedOutput output;
  output.attention.emplace();
  EXPECT_TRUE(ToProto(output, "id").has_offload());
  EXPECT_EQ(ToProto(output, "id").offload().mean_tokens_attended(), 0);
  EXPECT_EQ(ToProto(output, "id").offload().hit_ratio(), 1) << "nothing was missing";
  output.attention->attended_lists = 4;
  output.attention->attended_tokens = 10;
  OffloadCounters& counters = output.attention->offload;
  counters.host_to_device_bytes = 5;
  counters.prefetched_bytes = 2;
  counters.device_to_host_bytes = 7;
  counters.lookups = 8;
  counters.hits = 6;
  counters.stall = absl::Milliseconds(1250);
  const v1::OffloadStats stats = ToProto(output, "id").offload();
  EXPECT_EQ(stats.host_to_device_bytes(), 5);
  EXPECT_EQ(stats.device_to_host_bytes(), 7);
  EXPECT_EQ(stats.mean_tokens_attended(), 2.5);
  EXPECT_EQ(stats.hit_ratio(), 0.75);
  EXPECT_EQ(stats.stall().seconds(), 1);
  EXPECT_EQ(stats.stall().nanos(), 250'000'000);
}

TEST_F(ProtoConvertTest, PromptLogprobsAloneAskForTheChosenTokens) {
  EXPECT_EQ(Convert("text: 'x' logprobs { include_prompt: true }").request.logprobs.top, 0);
}

TEST_F(ProtoConvertTest, ChatKeepsOrderAndAbsence) {
  const GenerateCall call = Convert(R"(
      chat {
        messages { role: "user" content: "" }
        messages { role: "assistant" fields_json: '{"tool_calls": []}' }
        template_kwargs { fields { key: "count" value { number_value: 3 } } }
        tools_json: '[{"z": 1, "a": 2}]'
      })");
  const auto& chat = std::get<ChatInput>(call.prompt.prompt);
  ASSERT_EQ(chat.messages.size(), 2);
  EXPECT_EQ(chat.messages[0].content, "");
  EXPECT_FALSE(chat.messages[1].content);
  EXPECT_EQ(chat.messages[1].fields_json, "{\"tool_calls\": []}");
  EXPECT_TRUE(chat.add_generation_prompt);
  EXPECT_EQ(chat.template_kwargs_json, "{\"count\":3}");  // an integer, not 3.0
  EXPECT_EQ(chat.tools_json, "[{\"z\": 1, \"a\": 2}]");
}

TEST_F(ProtoConvertTest, PromptLengthLeavesRoomForOneToken) {
  GenerationRequest request;
  request.max_tokens = 1;
  request.prompt_token_ids.resize(99);
  EXPECT_TRUE(CheckPromptLength(request, model_).ok());
  request.prompt_token_ids.resize(100);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckPromptLength(request, model_)));
  request.max_tokens = 0;
  EXPECT_TRUE(CheckPromptLength(request, model_).ok());
  request.prompt_token_ids.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(CheckPromptLength(request, model_)));
}

TEST_F(ProtoConvertTest, FinishedCarriesEverything) {
  FinishedOutput output;
  output.index = 2;
  output.reason = FinishReason::kStopToken;
  output.matched_token_id = 0;
  output.prompt_tokens = 3;
  output.completion_tokens = 4;
  output.cached_tokens = 1;
  output.seed = UINT64_MAX;
  output.queue_time = absl::Milliseconds(1500);
  output.decode_time = absl::Nanoseconds(-5);  // a clock's jitter is no negative time
  const v1::Finished finished = ToProto(output, "id");
  EXPECT_EQ(finished.index(), 2);
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_TRUE(finished.has_matched_token_id());
  EXPECT_EQ(finished.matched_token_id(), 0);
  EXPECT_EQ(finished.usage().prompt_tokens(), 3);
  EXPECT_EQ(finished.usage().completion_tokens(), 4);
  EXPECT_EQ(finished.usage().cached_tokens(), 1);
  EXPECT_EQ(finished.seed(), UINT64_MAX);
  EXPECT_EQ(finished.request_id(), "id");
  EXPECT_EQ(finished.timings().queue().seconds(), 1);
  EXPECT_EQ(finished.timings().queue().nanos(), 500'000'000);
  EXPECT_EQ(finished.timings().decode().nanos(), 0);
  EXPECT_FALSE(finished.has_offload());
  output.matched_token_id = -1;
  EXPECT_FALSE(ToProto(output, "id").has_matched_token_id());
}

// One message takes one event after the other, of the same kind and of others.
TEST_F(ProtoConvertTest, Events) {
  v1::GenerateResponse message;
  OutputChunk piece;
  piece.index = 1;
  piece.text = "ab";
  piece.token_ids = {97, 98};
  piece.logprobs = {{.chosen = {.token_id = 0xE2, .logprob = -INFINITY, .rank = 3}, .top = {{}}}};
  StreamEvent event;
  event.kind = StreamEvent::Kind::kChunk;
  event.chunk = piece;
  for (int i = 0; i < 2; ++i) {
    ToProto(event, "id", &tokenizer_, &message);
    const v1::Chunk& chunk = message.chunk();
    EXPECT_EQ(chunk.index(), 1);
    EXPECT_EQ(chunk.text(), "ab");
    EXPECT_THAT(chunk.token_ids(), ElementsAre(97, 98));
    ASSERT_EQ(chunk.logprobs_size(), 1);
    EXPECT_EQ(chunk.logprobs(0).chosen().token(), "\xE2");  // bytes, not text
    EXPECT_EQ(chunk.logprobs(0).chosen().logprob(), -INFINITY);
    EXPECT_EQ(chunk.logprobs(0).chosen().rank(), 3);
    EXPECT_EQ(chunk.logprobs(0).top_size(), 1);
  }
  event.chunk = OutputChunk();
  event.chunk.text = "c";
  ToProto(event, "id", &tokenizer_, &message);
  EXPECT_EQ(message.chunk().ShortDebugString(), "text: \"c\"") << "something of the last one stays";
  event.kind = StreamEvent::Kind::kPromptLogprobs;
  event.prompt_logprobs.resize(3);
  for (int i = 0; i < 2; ++i) {
    ToProto(event, "id", &tokenizer_, &message);
    EXPECT_EQ(message.prompt_logprobs().positions_size(), 3);
  }
  event.kind = StreamEvent::Kind::kProgress;
  event.progress.total_tokens = 5;
  ToProto(event, "id", nullptr, &message);
  EXPECT_EQ(message.progress().total_tokens(), 5);
  event.kind = StreamEvent::Kind::kFinished;
  event.finished.index = 2;
  ToProto(event, "id", nullptr, &message);
  EXPECT_EQ(message.finished().index(), 2);
  EXPECT_EQ(message.finished().request_id(), "id");
}

}  // namespace
}  // namespace tokenbutler
