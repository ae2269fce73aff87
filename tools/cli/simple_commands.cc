// Commands of one unary call each.
#include <iostream>
#include <iterator>

#include "absl/strings/escaping.h"
#include "fmt/format.h"
#include "google/protobuf/util/json_util.h"
#include "tools/cli/commands.h"

namespace tokenbutler {
namespace {

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  return status.ok() ? json : "null\n";
}

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + duration.nanos() * 1e-9;
}

void PrintAttention(const v1::GetServerInfoResponse& server) {
  if (!server.has_attention()) return;
  const v1::AttentionOptions& attention = server.attention();
  std::string words = attention.policy();
  if (!attention.setting().empty()) words += fmt::format(", setting {}", attention.setting());
  if (attention.has_token_budget()) {
    words += fmt::format(", {} tokens per head and step", attention.token_budget());
  }
  fmt::print("attention {}; device tier {}{}\n", words, server.offload().backend(),
             server.offload().link_is_modelled() ? ", modelled link" : "");
}

void PrintPredictor(const v1::GetServerInfoResponse& server) {
  if (!server.has_predictor()) return;
  const v1::PredictorInfo& predictor = server.predictor();
  if (predictor.path().empty()) {
    fmt::print("predictor none: {}\n", predictor.reason());
  } else {
    const bool default_policy = server.attention().policy() == "tokenbutler";
    fmt::print("predictor {} (kind {}): {}; {}\n", predictor.path(), predictor.kind(),
               predictor.reason(),
               default_policy ? "in use" : "for requests with the policy tokenbutler");
  }
}

void PrintInfo(const v1::GetServerInfoResponse& server) {
  fmt::print("server   tokenbutler-server {} (LibTorch {}, CUDA {}, {})\n", server.version(),
             server.torch_version(), server.cuda_version(), server.isa());
  std::string state = v1::ServerState_Name(server.state());
  fmt::print("state    {}, up {:.0f} s\n", state.substr(sizeof("SERVER_STATE_") - 1),
             Seconds(server.uptime()));
  PrintAttention(server);
  PrintPredictor(server);
}

void PrintInfo(const v1::ModelInfo& model) {
  fmt::print("model    {} ({}, {})\n", model.name(), model.architecture(), model.dtype());
  fmt::print("shape    {} layers, hidden {}, {} heads, {} KV heads, head {}, vocabulary {}\n",
             model.num_layers(), model.hidden_size(), model.num_heads(), model.num_kv_heads(),
             model.head_dim(), model.vocab_size());
  fmt::print("context  {} tokens, RoPE scaling {}\n", model.max_model_len(), model.rope_scaling());
  fmt::print("KV dtype {}, {} bytes per token\n", model.kv_dtype(), model.kv_bytes_per_token());
  fmt::print("chat     {}\n", model.chat_template().empty() ? "no template" : "yes");
}

void PrintInfo(const v1::GetLoadResponse& load) {
  constexpr double kMiB = 0x1p20;
  fmt::print("load     {} running, {} waiting ({} prompt tokens), {} being tokenised\n",
             load.requests_running(), load.requests_waiting(), load.waiting_prompt_tokens(),
             load.requests_preparing());
  fmt::print("KV cache {:.1f} of {:.1f} MiB in use\n",
             static_cast<double>(load.kv_used_bytes()) / kMiB,
             static_cast<double>(load.kv_capacity_bytes()) / kMiB);
}

}  // namespace

ExitCode RunTokenize(const TokenizeFlags& flags, Client* client) {
  v1::TokenizeRequest request;
  if (flags.chat) {
    auto* message = request.mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(*flags.chat);
  } else {
    request.set_text(flags.text ? *flags.text
                                : std::string(std::istreambuf_iterator<char>(std::cin), {}));
  }
  request.mutable_tokenization()->set_parse_special_tokens(flags.special);
  request.set_return_tokens(true);
  v1::TokenizeResponse response;
  const grpc::Status status = client->Call([&](grpc::ClientContext* context) {
    return client->stub().Tokenize(context, request, &response);
  });
  if (!status.ok()) return ReportError(status, client->server());
  if (flags.json) {
    fmt::print("{}", ToJson(response));
    return kExitOk;
  }
  for (int i = 0; i < response.token_ids_size(); ++i) {
    fmt::print("{:>8}  {}\n", response.token_ids(i), absl::Utf8SafeCEscape(response.tokens(i)));
  }
  std::fflush(stdout);  // before what comes on standard error, which may be the same terminal
  fmt::print(stderr, "[{} tokens]\n", response.token_ids_size());
  return kExitOk;
}

ExitCode RunDetokenize(const std::vector<int>& token_ids, Client* client) {
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Add(token_ids.begin(), token_ids.end());
  v1::DetokenizeResponse response;
  const grpc::Status status = client->Call([&](grpc::ClientContext* context) {
    return client->stub().Detokenize(context, request, &response);
  });
  if (!status.ok()) return ReportError(status, client->server());
  fmt::print("{}{}", response.text(), LineEnd(response.text()));
  return kExitOk;
}

ExitCode RunInfo(bool json, Client* client) {
  v1::GetServerInfoResponse server;
  v1::GetLoadResponse load;
  v1::GetModelInfoResponse model;
  grpc::Status status = client->Call([&](grpc::ClientContext* context) {
    return client->stub().GetServerInfo(context, {}, &server);
  });
  if (!status.ok()) return ReportError(status, client->server());
  status = client->Call(
      [&](grpc::ClientContext* context) { return client->stub().GetLoad(context, {}, &load); });
  if (!status.ok()) return ReportError(status, client->server());
  const grpc::Status model_status = client->Call([&](grpc::ClientContext* context) {
    return client->stub().GetModelInfo(context, {}, &model);
  });
  if (json) {
    fmt::print("{{\"server\": {}, \"load\": {}, \"model\": {}}}\n", ToJson(server), ToJson(load),
               model_status.ok() ? ToJson(model.model()) : "null");
    return kExitOk;
  }
  PrintInfo(server);
  // A server that is still loading has no model to describe.
  if (model_status.ok()) PrintInfo(model.model());
  PrintInfo(load);
  return kExitOk;
}

ExitCode RunHealth(const std::string& service, Client* client) {
  using grpc::health::v1::HealthCheckResponse;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const grpc::Status status = client->Call([&](grpc::ClientContext* context) {
    return client->health().Check(context, request, &response);
  });
  if (!status.ok()) return ReportError(status, client->server());
  fmt::print("{}\n", HealthCheckResponse::ServingStatus_Name(response.status()));
  return response.status() == HealthCheckResponse::SERVING ? kExitOk : kExitFailed;
}

ExitCode RunAbort(const std::vector<std::string>& request_ids, Client* client) {
  v1::AbortRequest request;
  request.mutable_request_ids()->Add(request_ids.begin(), request_ids.end());
  v1::AbortResponse response;
  const grpc::Status status = client->Call([&](grpc::ClientContext* context) {
    return client->stub().Abort(context, request, &response);
  });
  if (!status.ok()) return ReportError(status, client->server());
  for (const std::string& id : response.aborted_request_ids()) fmt::print("{}\n", id);
  return kExitOk;
}

}  // namespace tokenbutler
