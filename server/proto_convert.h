#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/selection/attention_options.h"
#include "engine/token_sink.h"
#include "server/request_preparer.h"
#include "server/served_model.h"
#include "server/stream_queue.h"
#include "tokenbutler/v1/inference.pb.h"

namespace tokenbutler {

// The only place that knows both the protos and the engine's values. Every field is checked here,
// once; a failure names field, value and bound (server/field_check.h). Pure functions, any thread.

// A Generate call before its prompt is tokenised.
struct GenerateCall {
  PromptInput prompt;
  GenerationRequest request;  // all but prompt_token_ids, arrival and deadline
};

// INVALID_ARGUMENT; NOT_FOUND for another model's name; UNIMPLEMENTED for known fields that are
// not supported. An empty request_id stays empty.
absl::StatusOr<GenerateCall> ToGenerateCall(const v1::GenerateRequest& message,
                                            const ServedModel& model);

// What can only be checked once the prompt's tokens are known. INVALID_ARGUMENT.
absl::Status CheckPromptLength(const GenerationRequest& request, const ServedModel& model);

// What is set of a request's attention; bounds are checked when it is resolved (ResolveAttention).
// INVALID_ARGUMENT for names that are none.
absl::StatusOr<AttentionOptions> ToAttentionOptions(const v1::AttentionOptions& message);

absl::StatusOr<PromptInput> ToPromptInput(const v1::TokenizeRequest& message,
                                          const ServedModel& model);
absl::StatusOr<std::vector<int32_t>> ToTokenIds(const v1::DetokenizeRequest& message,
                                                const ServedModel& model);
absl::StatusOr<std::vector<std::string>> ToRequestIds(const v1::AbortRequest& message);

// NOT_FOUND unless `name` is empty or the served model's.
absl::Status CheckModelName(const std::string& name, const ServedModel& model);

v1::Progress ToProto(const PrefillProgress& progress);
v1::Finished ToProto(const FinishedOutput& output, const std::string& request_id);
// `tokenizer` gives the bytes of the tokens.
void AppendTo(const std::vector<PositionLogprobs>& logprobs, const Tokenizer& tokenizer,
              google::protobuf::RepeatedPtrField<v1::PositionLogprobs>* out);
// Makes `out` the message for an event. A message that already held an event of this kind keeps
// its memory: a stream of chunks in one message allocates nothing. `tokenizer` is needed for
// log-probabilities only; a call that was aborted before it reached the engine has none.
void ToProto(const StreamEvent& event, const std::string& request_id, const Tokenizer* tokenizer,
             v1::GenerateResponse* out);
// Every option that the policy uses; query and keys when they are not the policy's own choice.
v1::AttentionOptions ToProto(const AttentionParams& params);
v1::ModelInfo ToProto(const ServedModel& model);
v1::GetLoadResponse ToProto(const EngineLoad& load);

}  // namespace tokenbutler
