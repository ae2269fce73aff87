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

// The layout of the attention policy's state; none for dense attention.
absl::StatusOr<StateLayout> CheckAttention(const GenerationRequest& request,
                                           const ModelRunner* runner) {
  if (!request.attention.sparse()) return StateLayout{};
  if (runner == nullptr) return InternalError("no runner says which attention policies there are");
  RETURN_IF_ERROR(runner->CheckAttention(request.attention));
  return runner->state_layout(request.attention);
}

// The blocks of n completions with `max_new_tokens` each.
Footprint BlocksFor(const GenerationRequest& request, const KvLayout& layout,
                    const StateLayout& state, int max_new_tokens) {
  const int prompt = static_cast<int>(request.prompt_token_ids.size());
  const int scored = static_cast<int>(request.score_token_ids.size());
  const int n = request.sampling.n;
  Footprint footprint;
  footprint.max_new_tokens = max_new_tokens;
  // The last sampled token is never run, so it needs no row.
  const int rows = prompt + scored + std::max(0, max_new_tokens - 1);
  footprint.blocks_per_sequence = layout.blocks_for(rows);
  footprint.state_blocks_per_sequence = state.blocks_for(footprint.blocks_per_sequence);
  footprint.shared_blocks = n > 1 ? prompt / layout.block_size : 0;
  if (state.record_bytes > 0) {
    footprint.shared_state_blocks = footprint.shared_blocks / state.kv_blocks();
  }
  const int own = footprint.blocks_per_sequence - footprint.shared_blocks +
                  footprint.state_blocks_per_sequence - footprint.shared_state_blocks;
  footprint.total_blocks =
      int64_t{n} * own + footprint.shared_blocks + footprint.shared_state_blocks;
  return footprint;
}

// The largest max_new_tokens in [1, most] whose blocks the host tier has; 1 when none fits.
int NewTokensThatFit(const GenerationRequest& request, const AdmissionLimits& limits,
                     const StateLayout& state, int most) {
  int fits = 1;
  int above = most + 1;
  while (above - fits > 1) {
    const int middle = fits + (above - fits) / 2;
    const bool ok =
        BlocksFor(request, limits.layout, state, middle).total_blocks <= limits.num_blocks;
    (ok ? fits : above) = middle;
  }
  return fits;
}

absl::Status NeverFits(const GenerationRequest& request, const AdmissionLimits& limits,
                       const Footprint& footprint) {
  const int64_t block_bytes = static_cast<int64_t>(limits.layout.block_bytes());
  const int64_t state_blocks = int64_t{request.sampling.n} * (footprint.state_blocks_per_sequence -
                                                              footprint.shared_state_blocks) +
                               footprint.shared_state_blocks;
  std::string state;
  if (state_blocks > 0) {
    state =
        fmt::format(", {} of them ({} bytes) for the state of attention.policy \"{}\"",
                    state_blocks, state_blocks * block_bytes, PolicyName(request.attention.policy));
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
                                          const AdmissionLimits& limits) {
  RETURN_IF_ERROR(CheckShape(request, limits.config));
  RETURN_IF_ERROR(CheckLength(request, limits.config.max_model_len));
  RETURN_IF_ERROR(CheckTokenIds("prompt.token_ids", request.prompt_token_ids, limits.vocab_size));
  RETURN_IF_ERROR(CheckTokenIds("score_token_ids", request.score_token_ids, limits.vocab_size));
  RETURN_IF_ERROR(CheckSampling(request, limits));

  ASSIGN_OR_RETURN(const StateLayout state, CheckAttention(request, limits.runner));

  const int room = limits.config.max_model_len - static_cast<int>(request.prompt_token_ids.size());
  int max_new_tokens = std::min(request.max_tokens, room);
  bool context_bound = request.max_tokens > room;
  if (request.fit_max_tokens && max_new_tokens > 0) {
    const int fits = NewTokensThatFit(request, limits, state, max_new_tokens);
    context_bound |= fits < max_new_tokens;
    max_new_tokens = fits;
  }
  Footprint footprint = BlocksFor(request, limits.layout, state, max_new_tokens);
  footprint.context_bound = context_bound;
  if (footprint.total_blocks > limits.num_blocks) return NeverFits(request, limits, footprint);
  return footprint;
}

}  // namespace tokenbutler
