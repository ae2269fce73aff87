// Results: values -> protos. Requests are in proto_convert.cc.
#include <string_view>
#include <utility>

#include "engine/tokenizer/tokenizer.h"
#include "server/proto_convert.h"

namespace tokenbutler {
namespace {

void Set(absl::Duration value, google::protobuf::Duration* out) {
  const int64_t ns = absl::ToInt64Nanoseconds(std::max(value, absl::ZeroDuration()));
  out->set_seconds(ns / 1'000'000'000);
  out->set_nanos(static_cast<int32_t>(ns % 1'000'000'000));
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return v1::FINISH_REASON_EOS;
    case FinishReason::kStopString:
      return v1::FINISH_REASON_STOP_STRING;
    case FinishReason::kStopToken:
      return v1::FINISH_REASON_STOP_TOKEN;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kContextLength:
      return v1::FINISH_REASON_CONTEXT_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void Set(const TokenLogprob& value, const Tokenizer& tokenizer, v1::TokenLogprob* out) {
  out->set_token_id(value.token_id);
  const std::string_view bytes = tokenizer.TokenBytes(value.token_id);
  out->set_token(bytes.data(), bytes.size());
  out->set_logprob(value.logprob);
  out->set_rank(value.rank);
}

v1::OffloadStats ToProto(const AttentionStats& stats) {
  const OffloadCounters& counters = stats.offload;
  v1::OffloadStats out;
  out.set_host_to_device_bytes(counters.host_to_device_bytes);
  out.set_device_to_host_bytes(counters.device_to_host_bytes);
  if (stats.attended_lists > 0) {
    out.set_mean_tokens_attended(static_cast<double>(stats.attended_tokens) /
                                 static_cast<double>(stats.attended_lists));
  }
  out.set_hit_ratio(counters.lookups == 0 ? 1
                                          : static_cast<double>(counters.hits) /
                                                static_cast<double>(counters.lookups));
  Set(counters.stall, out.mutable_stall());
  return out;
}

const char* ScalingName(RopeConfig::Scaling scaling) {
  switch (scaling) {
    case RopeConfig::Scaling::kNone:
      return "none";
    case RopeConfig::Scaling::kLinear:
      return "linear";
    case RopeConfig::Scaling::kLlama3:
      return "llama3";
    case RopeConfig::Scaling::kYarn:
      return "yarn";
  }
  return "unknown";
}

}  // namespace

v1::Progress ToProto(const PrefillProgress& progress) {
  v1::Progress out;
  out.set_total_tokens(progress.total_tokens);
  out.set_cached_tokens(progress.cached_tokens);
  out.set_processed_tokens(progress.processed_tokens);
  Set(progress.elapsed, out.mutable_elapsed());
  return out;
}

v1::Finished ToProto(const FinishedOutput& output, const std::string& request_id) {
  v1::Finished out;
  out.set_index(output.index);
  out.set_reason(ToProto(output.reason));
  out.set_matched_stop_string(output.matched_stop_string);
  if (output.matched_token_id >= 0) out.set_matched_token_id(output.matched_token_id);
  out.mutable_usage()->set_prompt_tokens(output.prompt_tokens);
  out.mutable_usage()->set_completion_tokens(output.completion_tokens);
  out.mutable_usage()->set_cached_tokens(output.cached_tokens);
  Set(output.queue_time, out.mutable_timings()->mutable_queue());
  Set(output.prefill_time, out.mutable_timings()->mutable_prefill());
  Set(output.time_to_first_token, out.mutable_timings()->mutable_first_token());
  Set(output.decode_time, out.mutable_timings()->mutable_decode());
  if (output.attention.has_value()) *out.mutable_offload() = ToProto(*output.attention);
  out.set_seed(output.seed);
  out.set_request_id(request_id);
  return out;
}

void AppendTo(const std::vector<PositionLogprobs>& logprobs, const Tokenizer& tokenizer,
              google::protobuf::RepeatedPtrField<v1::PositionLogprobs>* out) {
  for (const PositionLogprobs& position : logprobs) {
    v1::PositionLogprobs* converted = out->Add();
    Set(position.chosen, tokenizer, converted->mutable_chosen());
    for (const TokenLogprob& token : position.top) Set(token, tokenizer, converted->add_top());
  }
}

void ToProto(const StreamEvent& event, const std::string& request_id, const Tokenizer* tokenizer,
             v1::GenerateResponse* out) {
  switch (event.kind) {
    case StreamEvent::Kind::kProgress:
      *out->mutable_progress() = ToProto(event.progress);
      return;
    case StreamEvent::Kind::kPromptLogprobs: {
      auto* positions = out->mutable_prompt_logprobs()->mutable_positions();
      positions->Clear();
      AppendTo(event.prompt_logprobs, *tokenizer, positions);
      return;
    }
    case StreamEvent::Kind::kChunk: {
      v1::Chunk* message = out->mutable_chunk();
      message->Clear();
      message->set_index(event.chunk.index);
      message->mutable_text()->assign(event.chunk.text);
      message->mutable_token_ids()->Add(event.chunk.token_ids.begin(), event.chunk.token_ids.end());
      if (!event.chunk.logprobs.empty()) {
        AppendTo(event.chunk.logprobs, *tokenizer, message->mutable_logprobs());
      }
      return;
    }
    case StreamEvent::Kind::kFinished:
      *out->mutable_finished() = ToProto(event.finished, request_id);
  }
}

v1::ModelInfo ToProto(const ServedModel& model) {
  v1::ModelInfo out;
  out.set_name(model.name);
  out.set_architecture(model.config.architecture);
  out.set_num_layers(model.config.num_layers);
  out.set_hidden_size(model.config.hidden_size);
  out.set_intermediate_size(model.config.intermediate_size);
  out.set_num_heads(model.config.num_heads);
  out.set_num_kv_heads(model.config.num_kv_heads);
  out.set_head_dim(model.config.head_dim);
  out.set_vocab_size(model.config.vocab_size);
  out.set_max_position(model.config.max_position);
  out.set_max_model_len(model.max_model_len);
  out.set_dtype(model.dtype);
  out.set_kv_dtype(model.kv_dtype);
  out.set_kv_bytes_per_token(model.kv_bytes_per_token);
  out.set_attention_state_bytes_per_token(model.attention_state_bytes_per_token);
  out.set_rope_scaling(ScalingName(model.config.rope.scaling));
  if (const auto bos = model.tokenizer->bos_id()) out.set_bos_token_id(*bos);
  for (const int32_t id : model.tokenizer->eos_ids()) out.add_eos_token_ids(id);
  out.set_chat_template(model.chat_template_source);
  return out;
}

v1::GetLoadResponse ToProto(const EngineLoad& load) {
  v1::GetLoadResponse out;
  out.set_requests_running(load.requests_running);
  out.set_requests_waiting(load.requests_waiting);
  out.set_waiting_prompt_tokens(load.waiting_prompt_tokens);
  out.set_kv_used_bytes(load.kv_used_bytes);
  out.set_kv_capacity_bytes(load.kv_capacity_bytes);
  return out;
}

}  // namespace tokenbutler
