#include "engine/admission.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "base/status_details.h"

namespace tokenbutler {
namespace {

absl::Status CheckTokenIds(std::string_view field, absl::Span<const int32_t> ids, int vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return WithField(
        InvalidArgumentError("{}[{}] is {}, must be in [0, {})", field, i, ids[i], vocab_size),
        field);
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const GenerationRequest& request, const EngineConfig& config) {
  if (request.prompt_token_ids.empty()) {
    return InvalidArgumentError("the prompt has no tokens, must have at least 1");
  }
  if (request.max_tokens < 0) {
    return WithField(
        InvalidArgumentError("max_tokens is {}, must not be negative", request.max_tokens),
        "max_tokens");
  }
  const int n = request.sampling.n;
  if (n < 1 || n > config.max_num_seqs) {
    return WithField(
        InvalidArgumentError("sampling.n is {}, must be in [1, {}]", n, config.max_num_seqs),
        "sampling.n");
  }
  const int decoded = request.decoded_prompt_tokens;
  if (decoded < 0 || decoded >= static_cast<int>(request.prompt_token_ids.size())) {
    return InvalidArgumentError(
        "decoded_prompt_tokens is {}, must be in [0, {}): the prompt's tokens", decoded,
        request.prompt_token_ids.size());
  }
  if (decoded > 0 && (request.max_tokens == 0 || request.logprobs.include_prompt)) {
    return InvalidArgumentError(
        "decoded_prompt_tokens is {}, must be 0 unless tokens are sampled and when "
        "log-probabilities of the prompt are asked for",
        decoded);
  }
  if (request.score_token_ids.empty()) return absl::OkStatus();
  if (request.max_tokens > 0 || n > 1) {
    return InvalidArgumentError(
        "tokens to score are given with max_tokens {} and n {}, must be 0 and 1",
        request.max_tokens, n);
  }
  return absl::OkStatus();
}

absl::Status CheckLength(const GenerationRequest& request, int max_model_len) {
  const size_t prompt = request.prompt_token_ids.size();
  const size_t scored = request.score_token_ids.size();
  if (prompt + scored <= static_cast<size_t>(max_model_len)) return absl::OkStatus();
  if (scored == 0) {
    return InvalidArgumentError("the prompt has {} tokens, must have at most {} (max_model_len)",
                                prompt, max_model_len);
  }
  return InvalidArgumentError(
      "the prompt and the tokens to score are {} + {} tokens, must be at most {} (max_model_len)",
      prompt, scored, max_model_len);
}

absl::Status CheckSampling(const GenerationRequest& request, const AdmissionLimits& limits) {
  if (request.max_tokens == 0) return absl::OkStatus();
  return Sampler::Create(MakeSamplerOptions(request, limits, /*seed=*/0, /*index=*/0),
                         request.prompt_token_ids)
      .status();
}

// Tokens at the prompt's beginning whose rows are there already.
int NumCachedTokens(const GenerationRequest& request, const HeldPrompt* prefix) {
  if (prefix != nullptr) return prefix->num_tokens();
  return request.prompt_rows == nullptr ? 0 : request.prompt_rows->num_tokens;
}

absl::Status CheckHold(const GenerationRequest& request) {
  if (request.hold.name.empty()) return absl::OkStatus();
  if (request.max_tokens > 0 || !request.score_token_ids.empty() || request.sampling.n > 1 ||
      request.attention.sparse()) {
    return InvalidArgumentError(
        "the prompt is to be held as \"{}\", with max_tokens {}, {} tokens to score, n {} and "
        "attention.policy \"{}\": must be 0, 0, 1 and \"dense\"",
        request.hold.name, request.max_tokens, request.score_token_ids.size(), request.sampling.n,
        PolicyName(request.attention.policy));
  }
  return absl::OkStatus();
}

absl::Status CheckPrefix(const GenerationRequest& request, const AdmissionLimits& limits,
                         const HeldPrompt* prefix) {
  const int cached = NumCachedTokens(request, prefix);
  if (prefix == nullptr && request.prompt_rows == nullptr) return absl::OkStatus();
  const std::vector<int32_t>& prompt = request.prompt_token_ids;
  if (request.prompt_rows != nullptr) {
    const size_t bytes = request.prompt_rows->blocks.size();
    const size_t wanted = static_cast<size_t>(limits.layout.blocks_for(std::max(cached, 0))) *
                          limits.layout.block_bytes();
    if (prefix != nullptr || cached < 1 || bytes != wanted) {
      return InvalidArgumentError(
          "prompt_rows has {} bytes for {} tokens, must have {} for 1 or more, and no held prompt "
          "beside it",
          bytes, cached, wanted);
    }
  }
  if (static_cast<size_t>(cached) > prompt.size() ||
      (prefix != nullptr &&
       !std::equal(prefix->token_ids.begin(), prefix->token_ids.end(), prompt.begin()))) {
    return InvalidArgumentError(
        "the prompt has {} tokens, must begin with the {} that are in the KV cache", prompt.size(),
        cached);
  }
  // Their logits would come from the prompt's last token, or from each of them.
  if (request.max_tokens > 0 && static_cast<size_t>(cached) == prompt.size()) {
    return InvalidArgumentError(
        "the prompt has {} tokens, must have more than the {} that are in the KV cache when tokens "
        "are sampled",
        prompt.size(), cached);
  }
  if (cached + request.decoded_prompt_tokens > static_cast<int>(prompt.size())) {
    return InvalidArgumentError(
        "the prompt has {} tokens, {} of them in the KV cache: decoded_prompt_tokens is {}, must "
        "be "
        "at most {}",
        prompt.size(), cached, request.decoded_prompt_tokens, prompt.size() - cached);
  }
  if (request.logprobs.include_prompt) {
    return InvalidArgumentError(
        "log-probabilities of the prompt are asked for, {} tokens of it are in the KV cache and "
        "are not run",
        cached);
  }
  return absl::OkStatus();
}

absl::Status CheckProbe(const GenerationRequest& request) {
  int least = 0;
  for (const int32_t token : request.probe.watched) {
    if (token < least || token >= static_cast<int>(request.prompt_token_ids.size())) {
      return InvalidArgumentError(
          "probe.watched has {}, must be ascending and in [0, {}): tokens of the prompt", token,
          request.prompt_token_ids.size());
    }
    least = token + 1;
  }
  return absl::OkStatus();
}

absl::Status CheckAttention(const AttentionParams& params, const ModelRunner* runner) {
  if (!params.sparse()) return absl::OkStatus();
  if (runner == nullptr) return InternalError("no runner says which attention policies there are");
  return runner->CheckAttention(params);
}

// What the policies need of the prompt's prefill: that it is run, or that they have watched it.
absl::Status CheckLearning(const GenerationRequest& request, const AdmissionLimits& limits,
                           const HeldPrompt* prefix, bool selects) {
  if (NumCachedTokens(request, prefix) == 0) return absl::OkStatus();
  const auto check = [&](const AttentionParams& params) -> absl::Status {
    if (!limits.runner->learns_from_prefill(params)) return absl::OkStatus();
    if (prefix != nullptr && prefix->Find(params) != nullptr) return absl::OkStatus();
    return InvalidArgumentError(
        "attention.policy \"{}\" learns from the prompt's queries, of which {} tokens are in the "
        "KV "
        "cache: must be one of the attentions that the prompt was held with",
        PolicyName(params.policy), NumCachedTokens(request, prefix));
  };
  if (selects) RETURN_IF_ERROR(check(request.attention));
  for (const AttentionParams& params : request.hold.attentions) RETURN_IF_ERROR(check(params));
  return absl::OkStatus();
}

// What the footprint depends on beside the number of new tokens.
struct Sizes {
  const GenerationRequest& request;
  const AdmissionLimits& limits;
  const HeldPrompt* prefix;

  int prompt_tokens() const { return static_cast<int>(request.prompt_token_ids.size()); }
  int prefill_tokens() const { return prompt_tokens() - request.decoded_prompt_tokens; }
  int RowsFor(int max_new_tokens) const {
    // The last sampled token is never run, so it needs no row.
    return prompt_tokens() + static_cast<int>(request.score_token_ids.size()) +
           std::max(0, max_new_tokens - 1);
  }
  int BlocksOf(int64_t bytes) const {
    const int64_t block_bytes = static_cast<int64_t>(limits.layout.block_bytes());
    return static_cast<int>((bytes + block_bytes - 1) / block_bytes);
  }
};

void AddPolicyBlocks(const Sizes& sizes, int num_rows, Footprint* footprint) {
  const GenerationRequest& request = sizes.request;
  const ModelRunner* runner = sizes.limits.runner;
  footprint->selects = request.attention.sparse() && num_rows > request.attention.token_budget;
  int64_t reserved_bytes = 0;
  if (footprint->selects) {
    const StateLayout state = runner->state_layout(request.attention);
    const PromptObserver* observer =
        sizes.prefix == nullptr ? nullptr : sizes.prefix->Find(request.attention);
    footprint->state_blocks_per_sequence = state.blocks_for(footprint->blocks_per_sequence);
    if (state.record_bytes > 0) {
      footprint->shared_state_blocks = footprint->shared_blocks / state.kv_blocks();
      if (observer != nullptr) {
        footprint->held_state_blocks = footprint->held_blocks / state.kv_blocks();
      }
    }
    const PolicyMemory memory = runner->policy_memory(request.attention, num_rows);
    // What it shares with the observer counts there, unless more of the prompt is to come.
    const bool shares = observer != nullptr && sizes.prefix->num_tokens() == sizes.prefill_tokens();
    reserved_bytes += request.sampling.n * memory.own + (shares ? 0 : memory.shared);
  }
  for (const AttentionParams& params : request.hold.attentions) {
    footprint->observer_state_blocks +=
        runner->state_layout(params).blocks_for(footprint->blocks_per_sequence);
    const PolicyMemory memory = runner->policy_memory(params, num_rows);
    reserved_bytes += memory.own + memory.shared;
  }
  footprint->reserved_blocks = sizes.BlocksOf(reserved_bytes);
}

// The blocks of n completions with `max_new_tokens` each.
Footprint BlocksFor(const Sizes& sizes, int max_new_tokens) {
  const KvLayout& layout = sizes.limits.layout;
  const int n = sizes.request.sampling.n;
  const int num_rows = sizes.RowsFor(max_new_tokens);
  Footprint footprint;
  footprint.max_new_tokens = max_new_tokens;
  footprint.blocks_per_sequence = layout.blocks_for(num_rows);
  footprint.shared_blocks = n > 1 ? sizes.prefill_tokens() / layout.block_size : 0;
  if (sizes.prefix != nullptr) {
    footprint.held_blocks = sizes.prefix->num_tokens() / layout.block_size;
  }
  AddPolicyBlocks(sizes, num_rows, &footprint);
  // The first completion takes over what is held, the others share what is the prompt's.
  const int all = footprint.blocks_per_sequence + footprint.state_blocks_per_sequence;
  const int held = footprint.held_blocks + footprint.held_state_blocks;
  const int shared = footprint.shared_blocks + footprint.shared_state_blocks;
  footprint.total_blocks = all - held + int64_t{n - 1} * (all - shared) +
                           footprint.observer_state_blocks + footprint.reserved_blocks;
  return footprint;
}

// Blocks that are in use as long as the held prompt is.
int64_t HeldBlocks(const HeldPrompt* prefix) {
  return prefix == nullptr ? 0 : static_cast<int64_t>(prefix->table.blocks.size());
}

// The largest max_new_tokens in [1, most] whose blocks the host tier has; 1 when none fits.
int NewTokensThatFit(const Sizes& sizes, int most) {
  int fits = 1;
  int above = most + 1;
  while (above - fits > 1) {
    const int middle = fits + (above - fits) / 2;
    const bool ok =
        BlocksFor(sizes, middle).total_blocks + HeldBlocks(sizes.prefix) <= sizes.limits.num_blocks;
    (ok ? fits : above) = middle;
  }
  return fits;
}

absl::Status NeverFits(const Sizes& sizes, const Footprint& footprint) {
  const GenerationRequest& request = sizes.request;
  const AdmissionLimits& limits = sizes.limits;
  const int64_t block_bytes = static_cast<int64_t>(limits.layout.block_bytes());
  const int64_t state_blocks = int64_t{request.sampling.n} * (footprint.state_blocks_per_sequence -
                                                              footprint.shared_state_blocks) +
                               footprint.shared_state_blocks - footprint.held_state_blocks +
                               footprint.observer_state_blocks + footprint.reserved_blocks;
  std::string state;
  if (state_blocks > 0) {
    state =
        fmt::format(", {} of them ({} bytes) for the state of attention.policy \"{}\"",
                    state_blocks, state_blocks * block_bytes, PolicyName(request.attention.policy));
  }
  if (const int64_t held = HeldBlocks(sizes.prefix); held > 0) {
    state += fmt::format(", beside the {} of the prompt that it continues", held);
  }
  return ResourceExhaustedError(
      "the request needs {} bytes of KV cache ({} blocks of {} tokens{}), the host tier has {} "
      "bytes ({} blocks)",
      footprint.total_blocks * block_bytes, footprint.total_blocks, limits.layout.block_size, state,
      limits.num_blocks * block_bytes, limits.num_blocks);
}

}  // namespace

SamplerOptions MakeSamplerOptions(const GenerationRequest& request, const AdmissionLimits& limits,
                                  uint64_t seed, int index) {
  SamplerOptions options;
  options.params = request.sampling;
  options.seed = seed;
  options.index = index;
  options.vocab_size = limits.vocab_size;
  options.stop_token_ids = request.stop.token_ids;
  if (!request.stop.ignore_eos) {
    options.stop_token_ids.insert(options.stop_token_ids.end(), limits.eos_ids.begin(),
                                  limits.eos_ids.end());
  }
  options.top_logprobs = request.logprobs.top;
  return options;
}

absl::StatusOr<Footprint> CheckAdmissible(const GenerationRequest& request,
                                          const AdmissionLimits& limits, const HeldPrompt* prefix) {
  RETURN_IF_ERROR(CheckShape(request, limits.config));
  RETURN_IF_ERROR(CheckLength(request, limits.config.max_model_len));
  RETURN_IF_ERROR(CheckTokenIds("prompt.token_ids", request.prompt_token_ids, limits.vocab_size));
  RETURN_IF_ERROR(CheckTokenIds("score_token_ids", request.score_token_ids, limits.vocab_size));
  RETURN_IF_ERROR(CheckSampling(request, limits));
  RETURN_IF_ERROR(CheckHold(request));
  RETURN_IF_ERROR(CheckPrefix(request, limits, prefix));
  RETURN_IF_ERROR(CheckProbe(request));
  RETURN_IF_ERROR(CheckAttention(request.attention, limits.runner));
  for (const AttentionParams& params : request.hold.attentions) {
    RETURN_IF_ERROR(CheckAttention(params, limits.runner));
  }

  const Sizes sizes{request, limits, prefix};
  const int room = limits.config.max_model_len - static_cast<int>(request.prompt_token_ids.size());
  int max_new_tokens = std::min(request.max_tokens, room);
  bool context_bound = request.max_tokens > room;
  if (request.fit_max_tokens && max_new_tokens > 0) {
    const int fits = NewTokensThatFit(sizes, max_new_tokens);
    context_bound |= fits < max_new_tokens;
    max_new_tokens = fits;
  }
  Footprint footprint = BlocksFor(sizes, max_new_tokens);
  footprint.context_bound = context_bound;
  RETURN_IF_ERROR(CheckLearning(request, limits, prefix, footprint.selects));
  if (footprint.total_blocks + HeldBlocks(prefix) > limits.num_blocks) {
    return NeverFits(sizes, footprint);
  }
  return footprint;
}

}  // namespace tokenbutler
