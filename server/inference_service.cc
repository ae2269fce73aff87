#include "server/inference_service.h"

#include <chrono>
#include <random>
#include <utility>

#include "absl/time/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/grpc_status.h"
#include "server/proto_convert.h"
#include "server/wire_codec.h"

namespace tokenbutler {
namespace {

// Answers a unary call.
grpc::ServerUnaryReactor* Reply(grpc::ServerUnaryReactor* reactor, grpc::ByteBuffer* out,
                                const absl::Status& status,
                                const google::protobuf::Message& response) {
  if (status.ok()) *out = SerializeMessage(response);
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

template <typename Message>
absl::StatusOr<Message> Parse(const grpc::ByteBuffer& bytes) {
  Message message;
  RETURN_IF_ERROR(ParseMessage(bytes, &message));
  return message;
}

absl::StatusOr<GenerateCall> ParseGenerateCall(
    const absl::StatusOr<std::shared_ptr<const ServedModel>>& model,
    const grpc::ByteBuffer& bytes) {
  RETURN_IF_ERROR(model.status());
  ASSIGN_OR_RETURN(const auto message, Parse<v1::GenerateRequest>(bytes));
  return ToGenerateCall(message, **model);
}

struct TokenizeCall {
  PromptInput input;
  bool return_tokens = false;
};

absl::StatusOr<TokenizeCall> ParseTokenizeCall(
    const absl::StatusOr<std::shared_ptr<const ServedModel>>& model,
    const grpc::ByteBuffer& bytes) {
  RETURN_IF_ERROR(model.status());
  ASSIGN_OR_RETURN(const auto message, Parse<v1::TokenizeRequest>(bytes));
  TokenizeCall call;
  ASSIGN_OR_RETURN(call.input, ToPromptInput(message, **model));
  call.return_tokens = message.return_tokens();
  return call;
}

struct DetokenizeCall {
  std::vector<int32_t> token_ids;
  bool skip_special_tokens = true;
};

absl::StatusOr<DetokenizeCall> ParseDetokenizeCall(
    const absl::StatusOr<std::shared_ptr<const ServedModel>>& model,
    const grpc::ByteBuffer& bytes) {
  RETURN_IF_ERROR(model.status());
  ASSIGN_OR_RETURN(const auto message, Parse<v1::DetokenizeRequest>(bytes));
  DetokenizeCall call;
  ASSIGN_OR_RETURN(call.token_ids, ToTokenIds(message, **model));
  if (message.has_skip_special_tokens()) call.skip_special_tokens = message.skip_special_tokens();
  return call;
}

absl::StatusOr<v1::AbortResponse> AbortCall(const OpenStreams& streams,
                                            const grpc::ByteBuffer& bytes) {
  ASSIGN_OR_RETURN(const auto message, Parse<v1::AbortRequest>(bytes));
  ASSIGN_OR_RETURN(const std::vector<std::string> ids, ToRequestIds(message));
  v1::AbortResponse response;
  for (const std::string& id : ids) {
    const std::shared_ptr<StreamWriter> stream = streams.Find(id);
    if (stream == nullptr || stream->ended()) continue;
    stream->Abort();
    response.add_aborted_request_ids(id);
  }
  return response;
}

absl::StatusOr<v1::GetModelInfoResponse> ModelInfoCall(const Lifecycle& lifecycle,
                                                       const grpc::ByteBuffer& bytes) {
  ASSIGN_OR_RETURN(const auto message, Parse<v1::GetModelInfoRequest>(bytes));
  std::shared_ptr<const ServedModel> model = lifecycle.ModelIfLoaded();
  if (model == nullptr) return lifecycle.Model().status();
  RETURN_IF_ERROR(CheckModelName(message.model(), *model));
  v1::GetModelInfoResponse response;
  *response.mutable_model() = ToProto(*model);
  return response;
}

v1::TokenizeResponse ToResponse(TokenizedPrompt prompt, const Tokenizer& tokenizer,
                                bool return_tokens) {
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(prompt.token_ids.begin(), prompt.token_ids.end());
  if (return_tokens) {
    for (const int32_t id : prompt.token_ids) {
      response.add_tokens(std::string(tokenizer.TokenBytes(id)));
    }
  }
  response.set_prompt(std::move(prompt.rendered_chat));
  return response;
}

v1::ServerState ToProtoState(Lifecycle::State state) {
  switch (state) {
    case Lifecycle::State::kLoading:
      return v1::SERVER_STATE_LOADING;
    case Lifecycle::State::kServing:
      return v1::SERVER_STATE_SERVING;
    case Lifecycle::State::kDraining:
      return v1::SERVER_STATE_DRAINING;
  }
  return v1::SERVER_STATE_UNSPECIFIED;
}

}  // namespace

InferenceService::InferenceService(Parts parts, Options options)
    : parts_(parts),
      options_(std::move(options)),
      start_time_(parts.clock->Now()),
      id_prefix_(std::random_device()()) {}

std::string InferenceService::DrawRequestId() {
  return fmt::format("req-{:08x}-{}", id_prefix_ & 0xffffffffu,
                     next_id_.fetch_add(1, std::memory_order_relaxed));
}

absl::Time InferenceService::Deadline(const grpc::CallbackServerContext& context) const {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return parts_.clock->Now() + (absl::FromChrono(deadline) - absl::Now());
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const absl::Time arrival = parts_.clock->Now();
  const absl::Time deadline = Deadline(*context);
  absl::StatusOr<std::shared_ptr<const ServedModel>> model = parts_.lifecycle->Model();
  absl::StatusOr<GenerateCall> call = ParseGenerateCall(model, *request);
  if (call.ok() && call->request.request_id.empty()) call->request.request_id = DrawRequestId();

  StreamWriter::Options options;
  options.request_id = call.ok() ? call->request.request_id : DrawRequestId();
  options.arrival = arrival;
  options.deadline = deadline;
  options.stall_limit = options_.stall_limit;
  options.max_pending_bytes = options_.max_pending_bytes;
  if (call.ok()) options.num_completions = call->request.sampling.n;
  // Only a stream that was added may take its id out again: a duplicate shares it.
  auto added = std::make_shared<std::atomic<bool>>(false);
  options.on_closed = [streams = parts_.streams, added](const std::string& id) {
    if (*added) streams->Remove(id);
  };
  const auto writer = StreamWriter::Create(
      context,
      {.write_threads = parts_.write_threads, .metrics = parts_.metrics, .clock = parts_.clock},
      std::move(options));
  if (!request->Valid()) {  // the client left before its message came
    writer->OnCancel();
    return writer.get();
  }
  absl::Status accepted = call.status();
  if (accepted.ok()) {
    accepted = parts_.streams->Add(writer);
    *added = accepted.ok();
  }
  if (!accepted.ok()) {
    writer->EndBeforeEngine(std::move(accepted));
    return writer.get();
  }
  call->request.arrival = arrival;
  call->request.deadline = deadline;
  Prepare(writer, *std::move(model), *std::move(call));
  return writer.get();
}

void InferenceService::Prepare(const std::shared_ptr<StreamWriter>& writer,
                               std::shared_ptr<const ServedModel> model, GenerateCall call) {
  const bool slow = call.prompt.needs_tokenization();
  auto job = [this, writer, model = std::move(model), call = std::move(call), slow]() mutable {
    if (!writer->ended()) {
      absl::StatusOr<TokenizedPrompt> prompt = TokenizePrompt(*model, std::move(call.prompt));
      absl::Status status = prompt.status();
      if (prompt.ok()) {
        call.request.prompt_token_ids = std::move(prompt->token_ids);
        status = CheckPromptLength(call.request, *model);
      }
      if (slow) {
        parts_.metrics->request_prepare_seconds.Observe(
            absl::ToDoubleSeconds(parts_.clock->Now() - call.request.arrival));
      }
      if (status.ok()) {
        writer->SubmitTo(std::move(model), std::move(call.request));
      } else {
        writer->EndBeforeEngine(std::move(status));
      }
    }
    if (slow) parts_.metrics->requests_preparing.Decrement();
  };
  if (!slow) {
    job();
    return;
  }
  parts_.metrics->requests_preparing.Increment();
  absl::Status queued = parts_.preparer->Run(std::move(job));
  if (!queued.ok()) {
    parts_.metrics->requests_preparing.Decrement();
    writer->EndBeforeEngine(std::move(queued));
  }
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<std::shared_ptr<const ServedModel>> model = parts_.lifecycle->Model();
  absl::StatusOr<TokenizeCall> call = ParseTokenizeCall(model, *request);
  if (!call.ok()) return Reply(reactor, response, call.status(), v1::TokenizeResponse());

  auto job = [reactor, response, model = *std::move(model), call = *std::move(call)]() mutable {
    absl::StatusOr<TokenizedPrompt> prompt = TokenizePrompt(*model, std::move(call.input));
    if (!prompt.ok()) {
      Reply(reactor, response, prompt.status(), v1::TokenizeResponse());
      return;
    }
    Reply(reactor, response, absl::OkStatus(),
          ToResponse(*std::move(prompt), *model->tokenizer, call.return_tokens));
  };
  const absl::Status queued = parts_.preparer->Run(std::move(job));
  if (!queued.ok()) return Reply(reactor, response, queued, v1::TokenizeResponse());
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<std::shared_ptr<const ServedModel>> model = parts_.lifecycle->Model();
  absl::StatusOr<DetokenizeCall> call = ParseDetokenizeCall(model, *request);
  if (!call.ok()) return Reply(reactor, response, call.status(), v1::DetokenizeResponse());

  auto job = [reactor, response, model = *std::move(model), call = *std::move(call)] {
    v1::DetokenizeResponse converted;
    converted.set_text(model->tokenizer->Decode(call.token_ids, call.skip_special_tokens));
    Reply(reactor, response, absl::OkStatus(), converted);
  };
  const absl::Status queued = parts_.preparer->Run(std::move(job));
  if (!queued.ok()) return Reply(reactor, response, queued, v1::DetokenizeResponse());
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* response) {
  const auto result = AbortCall(*parts_.streams, *request);
  return Reply(context->DefaultReactor(), response, result.status(),
               result.ok() ? *result : v1::AbortResponse());
}

grpc::ServerUnaryReactor* InferenceService::GetModelInfo(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request,
                                                         grpc::ByteBuffer* response) {
  const auto result = ModelInfoCall(*parts_.lifecycle, *request);
  return Reply(context->DefaultReactor(), response, result.status(),
               result.ok() ? *result : v1::GetModelInfoResponse());
}

grpc::ServerUnaryReactor* InferenceService::GetServerInfo(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request,
                                                          grpc::ByteBuffer* response) {
  const absl::Status parsed = Parse<v1::GetServerInfoRequest>(*request).status();
  v1::GetServerInfoResponse info;
  info.set_version(options_.build.version);
  info.set_torch_version(options_.build.torch);
  info.set_cuda_version(options_.build.cuda);
  info.set_isa(options_.build.isa);
  info.set_state(ToProtoState(parts_.lifecycle->state()));
  info.mutable_start_time()->set_seconds(absl::ToUnixSeconds(start_time_));
  info.mutable_uptime()->set_seconds(absl::ToInt64Seconds(parts_.clock->Now() - start_time_));
  info.mutable_configuration()->insert(options_.configuration.begin(),
                                       options_.configuration.end());
  if (const auto model = parts_.lifecycle->ModelIfLoaded()) {
    *info.mutable_attention() = ToProto(model->attention);
    info.mutable_attention()->set_setting(model->attention_setting);
    info.mutable_offload()->set_backend(model->offload_backend);
    info.mutable_offload()->set_link_is_modelled(model->link_is_modelled);
    info.mutable_predictor()->set_path(model->predictor.path);
    info.mutable_predictor()->set_kind(model->predictor.kind);
    info.mutable_predictor()->set_reason(model->predictor.reason);
  }
  return Reply(context->DefaultReactor(), response, parsed, info);
}

grpc::ServerUnaryReactor* InferenceService::GetLoad(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request,
                                                    grpc::ByteBuffer* response) {
  const absl::Status parsed = Parse<v1::GetLoadRequest>(*request).status();
  v1::GetLoadResponse load;
  if (const auto model = parts_.lifecycle->ModelIfLoaded()) load = ToProto(model->engine->load());
  load.set_requests_preparing(static_cast<int>(parts_.metrics->requests_preparing.Value()));
  return Reply(context->DefaultReactor(), response, parsed, load);
}

}  // namespace tokenbutler
