// Every field of a request against every kind of bad value: INVALID_ARGUMENT that names field,
// value and bound, and the server serves the next request.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "tests/server/server_fixture.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;
using Request = v1::GenerateRequest;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kMin = std::numeric_limits<int32_t>::min();
constexpr int kMax = std::numeric_limits<int32_t>::max();

struct BadRequest {
  std::string field;  // as BadRequest.field_violations names it
  std::string value;  // in the message
  std::string bound;  // in the message
  std::function<void(Request&)> set;
};

using Rows = std::vector<BadRequest>;

// NaN and infinities besides what is out of bounds.
void AddFloat(Rows& rows, const std::string& field, const std::string& bound,
              const std::vector<float>& out_of_bounds,
              const std::function<void(v1::SamplingOptions*, float)>& set) {
  std::vector<float> values = {kNan, kInf, -kInf};
  values.insert(values.end(), out_of_bounds.begin(), out_of_bounds.end());
  for (const float value : values) {
    const char* shown = "is ";
    if (std::isnan(value)) shown = "nan";
    if (std::isinf(value)) shown = value > 0 ? "inf" : "-inf";
    rows.push_back({fmt::format("sampling.{}", field), shown, bound,
                    [set, value](Request& r) { set(r.mutable_sampling(), value); }});
  }
}

void AddSamplingFloats(Rows& rows) {
  using Options = v1::SamplingOptions;
  AddFloat(rows, "temperature", "[0, 100]", {-0.1f, 100.1f},
           [](Options* o, float v) { o->set_temperature(v); });
  AddFloat(rows, "top_p", "(0, 1]", {0, -1, 1.01f}, [](Options* o, float v) { o->set_top_p(v); });
  AddFloat(rows, "min_p", "[0, 1]", {-0.1f, 1.1f}, [](Options* o, float v) { o->set_min_p(v); });
  AddFloat(rows, "typical_p", "(0, 1]", {0, 1.1f},
           [](Options* o, float v) { o->set_typical_p(v); });
  AddFloat(rows, "repetition_penalty", "(0, 100]", {0, -1, 101},
           [](Options* o, float v) { o->set_repetition_penalty(v); });
  AddFloat(rows, "presence_penalty", "[-2, 2]", {-2.1f, 2.1f},
           [](Options* o, float v) { o->set_presence_penalty(v); });
  AddFloat(rows, "frequency_penalty", "[-2, 2]", {-2.1f, 2.1f},
           [](Options* o, float v) { o->set_frequency_penalty(v); });
  AddFloat(rows, "logit_bias[65]", "[-100, 100]", {-101, 101},
           [](Options* o, float v) { (*o->mutable_logit_bias())[65] = v; });
}

void AddSamplingInts(Rows& rows) {
  for (const int v : {-1, kMin, 259, kMax}) {
    rows.push_back({"sampling.top_k", std::to_string(v), "[0, 258]",
                    [v](Request& r) { r.mutable_sampling()->set_top_k(v); }});
  }
  for (const int v : {0, -1, 9, kMax}) {
    rows.push_back({"sampling.n", std::to_string(v), "[1, 8]",
                    [v](Request& r) { r.mutable_sampling()->set_n(v); }});
  }
  for (const int v : {-1, 6, kMax}) {
    rows.push_back({"sampling.min_tokens", std::to_string(v), "[0, 5]",
                    [v](Request& r) { r.mutable_sampling()->set_min_tokens(v); }});
  }
  for (const int v : {-1, 258, kMax}) {
    rows.push_back({fmt::format("sampling.logit_bias[{}]", v), std::to_string(v), "[0, 258)",
                    [v](Request& r) { (*r.mutable_sampling()->mutable_logit_bias())[v] = 1; }});
  }
  rows.push_back({"sampling.logit_bias", "1025", "1024", [](Request& r) {
                    for (int i = 0; i < 1025; ++i) {
                      (*r.mutable_sampling()->mutable_logit_bias())[i] = 1;
                    }
                  }});
}

void AddStopsAndOutput(Rows& rows) {
  rows.push_back({"stop.strings[1]", "0 bytes", "1 to 1024", [](Request& r) {
                    r.mutable_stop()->add_strings("ok");
                    r.mutable_stop()->add_strings();  // empty
                  }});
  rows.push_back({"stop.strings[0]", "1025 bytes", "1 to 1024",
                  [](Request& r) { r.mutable_stop()->add_strings(std::string(1025, 'x')); }});
  rows.push_back({"stop.strings", "17", "16", [](Request& r) {
                    for (int i = 0; i < 17; ++i) r.mutable_stop()->add_strings(std::string(1, 'x'));
                  }});
  for (const int v : {-1, 258, kMin, kMax}) {
    rows.push_back({"stop.token_ids[0]", std::to_string(v), "[0, 258)",
                    [v](Request& r) { r.mutable_stop()->add_token_ids(v); }});
  }
  rows.push_back({"stop.token_ids", "257", "256", [](Request& r) {
                    for (int i = 0; i < 257; ++i) r.mutable_stop()->add_token_ids(1);
                  }});
  for (const int v : {-1, 21, kMax}) {
    rows.push_back({"logprobs.top", std::to_string(v), "[0, 20]",
                    [v](Request& r) { r.mutable_logprobs()->set_top(v); }});
  }
  for (const int v : {0, -1, 4097}) {
    rows.push_back({"output.stream_interval", std::to_string(v), "[1, 4096]",
                    [v](Request& r) { r.mutable_output()->set_stream_interval(v); }});
  }
  for (const int v : {-1001, 1001, kMin}) {
    rows.push_back(
        {"priority", std::to_string(v), "[-1000, 1000]", [v](Request& r) { r.set_priority(v); }});
  }
  for (const int v : {-1, 1001, kMin, kMax}) {
    rows.push_back(
        {"max_tokens", std::to_string(v), "[0, 1000]", [v](Request& r) { r.set_max_tokens(v); }});
  }
}

void AddInputs(Rows& rows) {
  rows.push_back({"input", "empty", "text, token_ids, chat", [](Request& r) { r.clear_text(); }});
  rows.push_back({"text", "0 bytes", "1 to", [](Request& r) { r.set_text(""); }});
  rows.push_back(
      {"text", "4001 bytes", "4000", [](Request& r) { r.set_text(std::string(4001, 'x')); }});
  rows.push_back(
      {"token_ids.ids", "0 entries", "1 to 1000", [](Request& r) { r.mutable_token_ids(); }});
  rows.push_back({"token_ids.ids", "1001 entries", "1 to 1000", [](Request& r) {
                    for (int i = 0; i < 1001; ++i) r.mutable_token_ids()->add_ids(1);
                  }});
  rows.push_back({"input", "1000 tokens", "1 to 999", [](Request& r) {  // one must be left
                    for (int i = 0; i < 1000; ++i) r.mutable_token_ids()->add_ids(1);
                  }});
  for (const int v : {-1, 258, kMin, kMax}) {
    rows.push_back({"token_ids.ids[1]", std::to_string(v), "[0, 258)", [v](Request& r) {
                      r.mutable_token_ids()->add_ids(1);
                      r.mutable_token_ids()->add_ids(v);
                    }});
  }
  rows.push_back({"chat.messages", "0 entries", "1 to 4096", [](Request& r) { r.mutable_chat(); }});
  rows.push_back({"chat.messages", "4097 entries", "4096", [](Request& r) {
                    for (int i = 0; i < 4097; ++i) r.mutable_chat()->add_messages();
                  }});
  rows.push_back({"chat.messages[0].role", "0 bytes", "1 to 64",
                  [](Request& r) { r.mutable_chat()->add_messages()->set_content("x"); }});
  rows.push_back({"chat.messages[0].role", "65 bytes", "1 to 64", [](Request& r) {
                    r.mutable_chat()->add_messages()->set_role(std::string(65, 'r'));
                  }});
  rows.push_back({"chat", "villain", "refused",
                  [](Request& r) { r.mutable_chat()->add_messages()->set_role("villain"); }});
  rows.push_back({"chat", "4001 bytes", "4000", [](Request& r) {
                    auto* message = r.mutable_chat()->add_messages();
                    message->set_role("user");
                    message->set_content(std::string(4001, 'x'));
                  }});
  for (const float v : {kNan, kInf, -kInf}) {
    rows.push_back({"chat.template_kwargs.x", fmt::format("{}", v), "finite", [v](Request& r) {
                      r.mutable_chat()->add_messages()->set_role("user");
                      auto* fields = r.mutable_chat()->mutable_template_kwargs()->mutable_fields();
                      (*fields)["x"].set_number_value(v);
                    }});
  }
}

void AddNames(Rows& rows) {
  rows.push_back({"request_id", "129 bytes", "1 to 128",
                  [](Request& r) { r.set_request_id(std::string(129, 'x')); }});
  for (const char* id : {"a b", "../x", "ü", "a\nb", "%s"}) {
    rows.push_back({"request_id", "request_id", "[A-Za-z0-9._:-]",
                    [id](Request& r) { r.set_request_id(id); }});
  }
  rows.push_back({"cache.salt", "257 bytes", "256",
                  [](Request& r) { r.mutable_cache()->set_salt(std::string(257, 's')); }});
}

void AddAttentionNames(Rows& rows) {
  using Options = v1::AttentionOptions;
  const auto add = [&](const std::string& name, const std::string& choices,
                       const std::vector<const char*>& values, auto set) {
    for (const char* value : values) {
      rows.push_back({"attention." + name, value, choices,
                      [set, value](Request& r) { set(r.mutable_attention(), value); }});
    }
  };
  add("policy",
      "dense, tokenbutler, sketch, pca, quest, exact, snapkv, h2o, streaming_llm, xkv, random",
      {"vibes", "oracle", "Dense", " dense"},
      [](Options* o, const char* value) { o->set_policy(value); });
  for (const std::string& value : {std::string(100'000, 'x'), std::string("a\nb")}) {
    rows.push_back({"attention.policy", "attention.policy is '", "must be one of",
                    [value](Request& r) { r.mutable_attention()->set_policy(value); }});
  }
  add("setting", "quality, fast", {"slow", "Fast"},
      [](Options* o, const char* value) { o->set_setting(value); });
  add("query", "real, lookahead, mlp", {"key", "MLP"},
      [](Options* o, const char* value) { o->set_query(value); });
  add("keys", "projected, bits1, bits2, bits4", {"bits3", "2"},
      [](Options* o, const char* value) { o->set_keys(value); });
  add("misses", "on_demand, deferred", {"never", "true"},
      [](Options* o, const char* value) { o->set_misses(value); });
}

void AddAttentionNumbers(Rows& rows) {
  using Options = v1::AttentionOptions;
  const auto add_int = [&](const std::string& name, const std::string& bound,
                           const std::vector<int>& values, void (Options::*set)(int32_t)) {
    for (const int value : values) {
      rows.push_back(
          {"attention." + name, fmt::format("is {}", value), bound, [set, value](Request& r) {
             r.mutable_attention()->set_policy("sketch");
             (r.mutable_attention()->*set)(value);
           }});
    }
  };
  add_int("token_budget", "[1, 16777216]", {0, -1, kMin, kMax, (1 << 24) + 1},
          &Options::set_token_budget);
  add_int("token_budget", "128 + 512", {1, 128, 512, 640}, &Options::set_token_budget);
  add_int("sink_tokens", "[0, 16777216]", {-1, kMin, kMax}, &Options::set_sink_tokens);
  add_int("local_window", "[1, 16777216]", {0, -1, kMin, kMax}, &Options::set_local_window);
  add_int("prediction_interval", "[1, 16]", {0, -1, 17, kMin, kMax},
          &Options::set_prediction_interval);
  add_int("candidates", "[0, 16777216]", {-1, kMin, kMax}, &Options::set_candidates);
  add_int("candidates", "at least token_budget, 4096", {1, 4095}, &Options::set_candidates);
  add_int("neighbours", "[0, 16777216]", {-1, kMin, kMax}, &Options::set_neighbours);
  for (const float value : {kNan, kInf, -kInf, 0.0f, -0.5f, 1.01f}) {
    rows.push_back({"attention.top_p", "is ", "(0, 1]", [value](Request& r) {
                      r.mutable_attention()->set_policy("sketch");
                      r.mutable_attention()->set_top_p(value);
                    }});
    rows.push_back({"attention.scan_fraction", "is ", "(0, 1]", [value](Request& r) {
                      r.mutable_attention()->set_policy("sketch");
                      r.mutable_attention()->set_scan_fraction(value);
                    }});
  }
}

// The fixture's default is dense, which uses no option; streaming_llm and quest use few.
void AddAttentionCombinations(Rows& rows) {
  using Options = v1::AttentionOptions;
  const std::vector<std::pair<std::string, std::function<void(Options*)>>> options = {
      {"prediction_interval", [](Options* o) { o->set_prediction_interval(1); }},
      {"candidates", [](Options* o) { o->set_candidates(0); }},
      {"neighbours", [](Options* o) { o->set_neighbours(0); }},
      {"top_p", [](Options* o) { o->set_top_p(1); }},
      {"query", [](Options* o) { o->set_query("real"); }},
      {"keys", [](Options* o) { o->set_keys("bits2"); }},
      {"scan_fraction", [](Options* o) { o->set_scan_fraction(1); }}};
  for (const auto& [name, set] : options) {
    for (const std::string policy : {"", "dense", "streaming_llm", "quest", "h2o"}) {
      rows.push_back({"attention." + name, policy.empty() ? "\"dense\"" : policy,
                      "must be unset or the policy one of tokenbutler, sketch, pca",
                      [set = set, policy](Request& r) {
                        r.mutable_attention()->set_policy(policy);
                        set(r.mutable_attention());
                      }});
    }
  }
  for (const char* policy : {"", "dense"}) {
    rows.push_back({"attention.token_budget", "\"dense\"", "tokenbutler", [policy](Request& r) {
                      r.mutable_attention()->set_policy(policy);
                      r.mutable_attention()->set_token_budget(4096);
                    }});
    rows.push_back({"attention.misses", "\"dense\"", "tokenbutler", [policy](Request& r) {
                      r.mutable_attention()->set_policy(policy);
                      r.mutable_attention()->set_misses("deferred");
                    }});
    rows.push_back(
        {"attention.dense_first_layer", "\"dense\"", "tokenbutler", [policy](Request& r) {
           r.mutable_attention()->set_policy(policy);
           r.mutable_attention()->set_dense_first_layer(true);
         }});
  }
  rows.push_back({"attention.setting", "\"fast\"", "\"sketch\"", [](Request& r) {
                    r.mutable_attention()->set_policy("exact");
                    r.mutable_attention()->set_setting("fast");
                  }});
}

TEST(BadRequestTest, EveryFieldTimesEveryKindOfBadValue) {
  TestServer server;
  Rows rows;
  AddSamplingFloats(rows);
  AddSamplingInts(rows);
  AddStopsAndOutput(rows);
  AddInputs(rows);
  AddNames(rows);
  AddAttentionNames(rows);
  AddAttentionNumbers(rows);
  AddAttentionCombinations(rows);
  ASSERT_GT(rows.size(), 170);
  for (const BadRequest& row : rows) {
    Request request = TextRequest("Hello", 5);
    row.set(request);
    const StreamResult result = server.Generate(request);
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << row.field << ": " << result.status.error_message();
    EXPECT_THAT(result.status.error_message(), HasSubstr(row.value)) << row.field;
    EXPECT_THAT(result.status.error_message(), HasSubstr(row.bound)) << row.field;
    const auto detail = Detail<google::rpc::BadRequest>(result.status);
    ASSERT_TRUE(detail) << row.field;
    EXPECT_EQ(detail->field_violations(0).field(), row.field);
    EXPECT_TRUE(server.Generate(TextRequest("next", 1)).status.ok());
  }
  EXPECT_EQ(server.metrics().requests_total(absl::StatusCode::kInvalidArgument).Value(),
            rows.size());
  server.ExpectIdle();
}

TEST(BadRequestTest, TextThatIsNotUtf8) {
  TestServer server;
  struct Row {
    const char* field;
    std::function<std::string*(Request&)> text;
  };
  const std::vector<Row> rows = {
      {"request_id", [](Request& r) { return r.mutable_request_id(); }},
      {"model", [](Request& r) { return r.mutable_model(); }},
      {"text", [](Request& r) { return r.mutable_text(); }},
      {"session_name", [](Request& r) { return r.mutable_session_name(); }},
      {"chat.messages[0].role",
       [](Request& r) { return r.mutable_chat()->add_messages()->mutable_role(); }},
      {"chat.messages[0].content",
       [](Request& r) { return r.mutable_chat()->add_messages()->mutable_content(); }},
      {"chat.messages[0].fields_json",
       [](Request& r) { return r.mutable_chat()->add_messages()->mutable_fields_json(); }},
      {"chat.tools_json", [](Request& r) { return r.mutable_chat()->mutable_tools_json(); }},
      {"chat.documents_json",
       [](Request& r) { return r.mutable_chat()->mutable_documents_json(); }},
      {"stop.strings[0]", [](Request& r) { return r.mutable_stop()->add_strings(); }},
      {"cache.salt", [](Request& r) { return r.mutable_cache()->mutable_salt(); }},
      {"attention.policy", [](Request& r) { return r.mutable_attention()->mutable_policy(); }},
      {"attention.setting", [](Request& r) { return r.mutable_attention()->mutable_setting(); }},
      {"attention.query", [](Request& r) { return r.mutable_attention()->mutable_query(); }},
      {"attention.keys", [](Request& r) { return r.mutable_attention()->mutable_keys(); }},
      {"attention.misses", [](Request& r) { return r.mutable_attention()->mutable_misses(); }},
  };
  for (const Row& row : rows) {
    Request request;
    *row.text(request) = "ab\xFFzz";
    const RawResult result =
        RawCall(server.NewChannel(), "/tokenbutler.v1.InferenceService/Generate",
                request.SerializeAsString());
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << row.field;
    EXPECT_THAT(result.status.error_message(),
                ::testing::AllOf(HasSubstr(row.field), HasSubstr("byte 2"), HasSubstr("UTF-8")));
    EXPECT_TRUE(server.Generate(TextRequest("next", 1)).status.ok()) << row.field;
  }
}

TEST(BadRequestTest, BytesThatAreNoMessage) {
  TestServer server;
  for (const char* method : {"Generate", "Tokenize", "Detokenize", "Abort", "GetModelInfo"}) {
    const RawResult result =
        RawCall(server.NewChannel(), fmt::format("/tokenbutler.v1.InferenceService/{}", method),
                "\x0a\xff");
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
  }
  EXPECT_TRUE(server.Generate(TextRequest("next", 1)).status.ok());
}

TEST(BadRequestTest, LargerThanTheReceiveLimit) {
  TestServer::Options options;
  options.max_receive_bytes = 1 << 20;
  TestServer server(options);
  EXPECT_EQ(server.Generate(TextRequest(std::string(2 << 20, 'x'), 1)).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(server.Generate(TextRequest("next", 1)).status.ok());
}

TEST(BadRequestTest, EveryFieldOfTheOtherCalls) {
  TestServer server;
  v1::InferenceService::Stub& stub = server.stub();
  struct Row {
    std::string field, value, bound;
    std::function<grpc::Status(grpc::ClientContext*)> call;
    grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT;
  };
  const auto tokenize = [&](auto set) {
    return [&stub, set](grpc::ClientContext* context) {
      v1::TokenizeRequest request;
      set(request);
      v1::TokenizeResponse response;
      return stub.Tokenize(context, request, &response);
    };
  };
  const auto detokenize = [&](const std::string& model, int id) {
    return [&stub, model, id](grpc::ClientContext* context) {
      v1::DetokenizeRequest request;
      request.set_model(model);
      request.add_token_ids(1);
      request.add_token_ids(id);
      v1::DetokenizeResponse response;
      return stub.Detokenize(context, request, &response);
    };
  };
  const auto abort = [&](const std::vector<std::string>& ids) {
    return [&stub, ids](grpc::ClientContext* context) {
      v1::AbortRequest request;
      request.mutable_request_ids()->Add(ids.begin(), ids.end());
      v1::AbortResponse response;
      return stub.Abort(context, request, &response);
    };
  };
  using Tokenize = v1::TokenizeRequest;
  std::vector<Row> rows = {
      {"input", "empty", "text, chat", tokenize([](Tokenize&) {})},
      {"text", "4001 bytes", "4000",
       tokenize([](Tokenize& r) { r.set_text(std::string(4001, 'x')); })},
      {"chat.messages", "0 entries", "1 to 4096", tokenize([](Tokenize& r) { r.mutable_chat(); })},
      {"chat.messages[0].role", "0 bytes", "1 to 64",
       tokenize([](Tokenize& r) { r.mutable_chat()->add_messages(); })},
      {"request_ids", "0 entries", "1 to 1024", abort({})},
      {"request_ids", "1025 entries", "1024", abort(std::vector<std::string>(1025, "x"))},
      {"request_ids[1]", "'a b'", "[A-Za-z0-9._:-]", abort({"a", "a b"})},
      {"request_ids[0]", "0 bytes", "1 to 128", abort({""})},
      {"request_ids[0]", "129 bytes", "128", abort({std::string(129, 'x')})},
      {"model", "'other'", "'fake'", tokenize([](Tokenize& r) { r.set_model("other"); }),
       grpc::StatusCode::NOT_FOUND},
      {"model", "'other'", "'fake'", detokenize("other", 1), grpc::StatusCode::NOT_FOUND},
  };
  for (const int id : {-1, 258, kMin, kMax}) {
    rows.push_back({"token_ids[1]", std::to_string(id), "[0, 258)", detokenize("", id)});
  }
  rows.push_back({"model", "'other'", "'fake'",
                  [&stub](grpc::ClientContext* context) {
                    v1::GetModelInfoRequest request;
                    request.set_model("other");
                    v1::GetModelInfoResponse response;
                    return stub.GetModelInfo(context, request, &response);
                  },
                  grpc::StatusCode::NOT_FOUND});
  for (const Row& row : rows) {
    grpc::ClientContext context;
    const grpc::Status status = row.call(&context);
    EXPECT_EQ(status.error_code(), row.code) << row.field << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(row.value)) << row.field;
    EXPECT_THAT(status.error_message(), HasSubstr(row.bound)) << row.field;
    const auto detail = Detail<google::rpc::BadRequest>(status);
    ASSERT_TRUE(detail) << row.field;
    EXPECT_EQ(detail->field_violations(0).field(), row.field);
  }
  EXPECT_TRUE(server.Generate(TextRequest("next", 1)).status.ok());
}

TEST(BadRequestTest, ChatWithoutATemplate) {
  TestServer::Options options;
  options.chat_template = false;
  TestServer server(options);
  Request request;
  request.mutable_chat()->add_messages()->set_role("user");
  const StreamResult result = server.Generate(request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(result.status.error_message(), HasSubstr("no chat template"));
}

TEST(BadRequestTest, ChatWithATemplateThatCannotBeUsedNamesTheConstruct) {
  TestServer::Options options;
  options.chat_template = false;
  options.chat_template_error = "chat template line 3: the tag 'import' is not supported";
  TestServer server(options);
  Request request;
  request.mutable_chat()->add_messages()->set_role("user");
  const StreamResult result = server.Generate(request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(result.status.error_message(), HasSubstr("line 3: the tag 'import'"));
}

}  // namespace
}  // namespace tokenbutler
