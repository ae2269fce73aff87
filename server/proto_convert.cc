// Requests: protos -> values. The way back is in proto_convert_output.cc.
#include "server/proto_convert.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status.h"
#include "base/status_details.h"
#include "google/protobuf/util/json_util.h"
#include "server/field_check.h"

namespace tokenbutler {
namespace {

constexpr size_t kMaxMessages = 4096;
constexpr size_t kMaxRoleBytes = 64;
constexpr size_t kMaxLogitBiases = 1024;
constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopStringBytes = 1024;
constexpr size_t kMaxStopTokenIds = 256;
constexpr size_t kMaxAbortIds = 1024;
constexpr size_t kMaxSaltBytes = 256;
constexpr int kMaxCompletions = 128;
constexpr int kMaxTopLogprobs = 20;
constexpr int kMaxStreamInterval = 4096;
constexpr int kMaxPriority = 1000;

absl::Status CheckTokenIds(const char* field, const google::protobuf::RepeatedField<int32_t>& ids,
                           int vocab_size) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return CheckTokenId(fmt::format("{}[{}]", field, i), ids[i], vocab_size);
  }
  return absl::OkStatus();
}

// JSON has no NaN and no infinities, and protobuf would write them as strings.
absl::Status CheckFinite(const std::string& field, const google::protobuf::Value& value) {
  if (value.has_number_value() && !std::isfinite(value.number_value())) {
    return WithField(
        InvalidArgumentError("{} is {}, must be a finite number", field, value.number_value()),
        field);
  }
  for (int i = 0; i < value.list_value().values_size(); ++i) {
    RETURN_IF_ERROR(CheckFinite(fmt::format("{}[{}]", field, i), value.list_value().values(i)));
  }
  for (const auto& [key, entry] : value.struct_value().fields()) {
    RETURN_IF_ERROR(CheckFinite(fmt::format("{}.{}", field, key), entry));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ToJson(const google::protobuf::Struct& fields, const char* field) {
  for (const auto& [key, value] : fields.fields()) {
    RETURN_IF_ERROR(CheckFinite(fmt::format("{}.{}", field, key), value));
  }
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(fields, &json);
  if (status.ok()) return json;
  return WithField(InvalidArgumentError("{} is no JSON object: {}", field, status.ToString()),
                   field);
}

absl::StatusOr<ChatInput> ToChatInput(const v1::ChatInput& message) {
  RETURN_IF_ERROR(CheckCount("chat.messages", message.messages_size(), 1, kMaxMessages));
  ChatInput chat;
  for (const v1::ChatMessage& entry : message.messages()) {
    const std::string field = fmt::format("chat.messages[{}].role", chat.messages.size());
    RETURN_IF_ERROR(CheckBytes(field, entry.role().size(), 1, kMaxRoleBytes));
    ChatMessage converted;
    converted.role = entry.role();
    if (entry.has_content()) converted.content = entry.content();
    converted.fields_json = entry.fields_json();
    chat.messages.push_back(std::move(converted));
  }
  chat.add_generation_prompt =
      message.has_add_generation_prompt() ? message.add_generation_prompt() : true;
  chat.tools_json = message.tools_json();
  chat.documents_json = message.documents_json();
  if (message.has_template_kwargs()) {
    ASSIGN_OR_RETURN(chat.template_kwargs_json,
                     ToJson(message.template_kwargs(), "chat.template_kwargs"));
  }
  return chat;
}

absl::StatusOr<PromptInput> ToPromptInput(const v1::GenerateRequest& message,
                                          const ServedModel& model) {
  PromptInput input;
  switch (message.input_case()) {
    case v1::GenerateRequest::kText:
      RETURN_IF_ERROR(CheckBytes("text", message.text().size(), 1, model.max_text_bytes));
      input.prompt = message.text();
      break;
    case v1::GenerateRequest::kTokenIds:
      RETURN_IF_ERROR(
          CheckCount("token_ids.ids", message.token_ids().ids_size(), 1, model.max_model_len));
      RETURN_IF_ERROR(
          CheckTokenIds("token_ids.ids", message.token_ids().ids(), model.config.vocab_size));
      input.prompt =
          std::vector<int32_t>(message.token_ids().ids().begin(), message.token_ids().ids().end());
      break;
    case v1::GenerateRequest::kChat: {
      ASSIGN_OR_RETURN(input.prompt, ToChatInput(message.chat()));
      break;
    }
    case v1::GenerateRequest::INPUT_NOT_SET:
      return WithField(InvalidArgumentError("input is empty, must be one of text, token_ids, chat"),
                       "input");
  }
  if (message.tokenization().has_add_special_tokens()) {
    input.add_special_tokens = message.tokenization().add_special_tokens();
  }
  input.parse_special_tokens = message.tokenization().parse_special_tokens();
  return input;
}

absl::Status CheckSampling(const SamplingParams& params, const ServedModel& model) {
  RETURN_IF_ERROR(CheckInClosedRange("sampling.temperature", params.temperature, 0, 100));
  RETURN_IF_ERROR(CheckInHalfOpenRange("sampling.top_p", params.top_p, 0, 1));
  RETURN_IF_ERROR(CheckInt("sampling.top_k", params.top_k, 0, model.config.vocab_size));
  RETURN_IF_ERROR(CheckInClosedRange("sampling.min_p", params.min_p, 0, 1));
  RETURN_IF_ERROR(CheckInHalfOpenRange("sampling.typical_p", params.typical_p, 0, 1));
  RETURN_IF_ERROR(
      CheckInHalfOpenRange("sampling.repetition_penalty", params.repetition_penalty, 0, 100));
  RETURN_IF_ERROR(CheckInClosedRange("sampling.presence_penalty", params.presence_penalty, -2, 2));
  RETURN_IF_ERROR(
      CheckInClosedRange("sampling.frequency_penalty", params.frequency_penalty, -2, 2));
  RETURN_IF_ERROR(
      CheckInt("sampling.n", params.n, 1, std::min(kMaxCompletions, model.max_num_seqs)));
  RETURN_IF_ERROR(CheckCount("sampling.logit_bias", params.logit_bias.size(), 0, kMaxLogitBiases));
  for (const auto& [id, bias] : params.logit_bias) {
    const std::string field = fmt::format("sampling.logit_bias[{}]", id);
    RETURN_IF_ERROR(CheckTokenId(field, id, model.config.vocab_size));
    RETURN_IF_ERROR(CheckInClosedRange(field, bias, -100, 100));
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplingParams> ToSampling(const v1::SamplingOptions& message,
                                          const ServedModel& model) {
  SamplingParams params;
  if (message.has_temperature()) params.temperature = message.temperature();
  if (message.has_top_p()) params.top_p = message.top_p();
  params.top_k = message.top_k();
  params.min_p = message.min_p();
  if (message.has_typical_p()) params.typical_p = message.typical_p();
  if (message.has_repetition_penalty()) params.repetition_penalty = message.repetition_penalty();
  params.presence_penalty = message.presence_penalty();
  params.frequency_penalty = message.frequency_penalty();
  params.logit_bias.assign(message.logit_bias().begin(), message.logit_bias().end());
  // A map has no order of its own; the same request must give the same sums.
  std::sort(params.logit_bias.begin(), params.logit_bias.end());
  if (message.has_seed()) params.seed = message.seed();
  if (message.has_n()) params.n = message.n();
  params.min_tokens = message.min_tokens();
  RETURN_IF_ERROR(CheckSampling(params, model));
  return params;
}

absl::StatusOr<StopParams> ToStop(const v1::StopOptions& message, const ServedModel& model) {
  RETURN_IF_ERROR(CheckCount("stop.strings", message.strings_size(), 0, kMaxStopStrings));
  for (int i = 0; i < message.strings_size(); ++i) {
    RETURN_IF_ERROR(CheckBytes(fmt::format("stop.strings[{}]", i), message.strings(i).size(), 1,
                               kMaxStopStringBytes));
  }
  RETURN_IF_ERROR(CheckCount("stop.token_ids", message.token_ids_size(), 0, kMaxStopTokenIds));
  RETURN_IF_ERROR(CheckTokenIds("stop.token_ids", message.token_ids(), model.config.vocab_size));
  StopParams stop;
  stop.strings.assign(message.strings().begin(), message.strings().end());
  stop.token_ids.assign(message.token_ids().begin(), message.token_ids().end());
  stop.ignore_eos = message.ignore_eos();
  stop.include_in_output = message.include_in_output();
  return stop;
}

absl::StatusOr<LogprobParams> ToLogprobs(const v1::LogprobOptions& message) {
  LogprobParams logprobs;
  if (message.has_top()) {
    RETURN_IF_ERROR(CheckInt("logprobs.top", message.top(), 0, kMaxTopLogprobs));
    logprobs.top = message.top();
  } else if (message.include_prompt()) {
    logprobs.top = 0;
  }
  logprobs.include_prompt = message.include_prompt();
  return logprobs;
}

absl::StatusOr<OutputParams> ToOutput(const v1::OutputOptions& message) {
  OutputParams output;
  if (message.has_skip_special_tokens()) output.skip_special_tokens = message.skip_special_tokens();
  output.return_token_ids = message.return_token_ids();
  output.return_progress = message.return_progress();
  if (message.has_stream_interval()) {
    RETURN_IF_ERROR(
        CheckInt("output.stream_interval", message.stream_interval(), 1, kMaxStreamInterval));
    output.stream_interval = message.stream_interval();
  }
  return output;
}

// Fields of features that are known but not built: sessions, prefix caches.
absl::Status CheckSupported(const v1::GenerateRequest& message) {
  if (!message.session_name().empty()) {
    return Unsupported("session_name", Quoted(message.session_name()), "it must be empty");
  }
  RETURN_IF_ERROR(CheckBytes("cache.salt", message.cache().salt().size(), 0, kMaxSaltBytes));
  if (message.cache().use_prefix_cache()) {
    return Unsupported("cache.use_prefix_cache", "true", "it must be false or unset");
  }
  if (!message.cache().salt().empty()) {
    return Unsupported("cache.salt", Quoted(message.cache().salt()), "it must be empty");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckModelName(const std::string& name, const ServedModel& model) {
  if (name.empty() || name == model.name) return absl::OkStatus();
  return WithField(
      NotFoundError("model is {}, this server has '{}' only", Quoted(name), model.name), "model");
}

absl::StatusOr<GenerateCall> ToGenerateCall(const v1::GenerateRequest& message,
                                            const ServedModel& model) {
  GenerateCall call;
  if (!message.request_id().empty()) {
    RETURN_IF_ERROR(CheckRequestId("request_id", message.request_id()));
  }
  call.request.request_id = message.request_id();
  RETURN_IF_ERROR(CheckModelName(message.model(), model));
  RETURN_IF_ERROR(CheckSupported(message));
  ASSIGN_OR_RETURN(call.prompt, ToPromptInput(message, model));
  ASSIGN_OR_RETURN(call.request.sampling, ToSampling(message.sampling(), model));
  // Unset: until the context is full, or as far as the KV cache reaches. The engine ends there.
  call.request.fit_max_tokens = !message.has_max_tokens();
  call.request.max_tokens = message.has_max_tokens() ? message.max_tokens() : model.max_model_len;
  RETURN_IF_ERROR(CheckInt("max_tokens", call.request.max_tokens, 0, model.max_model_len));
  RETURN_IF_ERROR(CheckInt("sampling.min_tokens", call.request.sampling.min_tokens, 0,
                           call.request.max_tokens));
  ASSIGN_OR_RETURN(call.request.stop, ToStop(message.stop(), model));
  ASSIGN_OR_RETURN(call.request.logprobs, ToLogprobs(message.logprobs()));
  ASSIGN_OR_RETURN(call.request.output, ToOutput(message.output()));
  ASSIGN_OR_RETURN(const AttentionOptions attention, ToAttentionOptions(message.attention()));
  ASSIGN_OR_RETURN(call.request.attention, ResolveAttention(model.attention, attention));
  RETURN_IF_ERROR(CheckInt("priority", message.priority(), -kMaxPriority, kMaxPriority));
  call.request.priority = message.priority();
  return call;
}

absl::Status CheckPromptLength(const GenerationRequest& request, const ServedModel& model) {
  const int64_t tokens = static_cast<int64_t>(request.prompt_token_ids.size());
  // There must be room for one more token, unless none is wanted.
  const int64_t most = model.max_model_len - (request.max_tokens > 0 ? 1 : 0);
  if (tokens >= 1 && tokens <= most) return absl::OkStatus();
  return WithField(
      InvalidArgumentError("the prompt is {} tokens long, must be 1 to {}{}", tokens, most,
                           request.max_tokens > 0 ? ", so that one more fits the model's context"
                                                  : ", the model's context"),
      "input");
}

absl::StatusOr<PromptInput> ToPromptInput(const v1::TokenizeRequest& message,
                                          const ServedModel& model) {
  RETURN_IF_ERROR(CheckModelName(message.model(), model));
  PromptInput input;
  switch (message.input_case()) {
    case v1::TokenizeRequest::kText:
      input.prompt = message.text();
      break;
    case v1::TokenizeRequest::kChat: {
      ASSIGN_OR_RETURN(input.prompt, ToChatInput(message.chat()));
      break;
    }
    case v1::TokenizeRequest::INPUT_NOT_SET:
      return WithField(InvalidArgumentError("input is empty, must be one of text, chat"), "input");
  }
  if (message.tokenization().has_add_special_tokens()) {
    input.add_special_tokens = message.tokenization().add_special_tokens();
  }
  input.parse_special_tokens = message.tokenization().parse_special_tokens();
  return input;
}

absl::StatusOr<std::vector<int32_t>> ToTokenIds(const v1::DetokenizeRequest& message,
                                                const ServedModel& model) {
  RETURN_IF_ERROR(CheckModelName(message.model(), model));
  RETURN_IF_ERROR(CheckTokenIds("token_ids", message.token_ids(), model.config.vocab_size));
  return std::vector<int32_t>(message.token_ids().begin(), message.token_ids().end());
}

absl::StatusOr<std::vector<std::string>> ToRequestIds(const v1::AbortRequest& message) {
  RETURN_IF_ERROR(CheckCount("request_ids", message.request_ids_size(), 1, kMaxAbortIds));
  for (int i = 0; i < message.request_ids_size(); ++i) {
    RETURN_IF_ERROR(CheckRequestId(fmt::format("request_ids[{}]", i), message.request_ids(i)));
  }
  return std::vector<std::string>(message.request_ids().begin(), message.request_ids().end());
}

}  // namespace tokenbutler
