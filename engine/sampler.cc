#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/status.h"
#include "engine/counter_rng.h"
#include "engine/logprobs.h"

namespace tokenbutler {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr int kWordBits = 64;

absl::Status CheckTokenId(const char* field, int32_t token_id, int vocab_size) {
  if (token_id >= 0 && token_id < vocab_size) return absl::OkStatus();
  return InvalidArgumentError("{} has token id {}, must be in [0, {})", field, token_id,
                              vocab_size);
}

absl::Status CheckParams(const SamplingParams& params) {
  const auto above_to_one = [](const char* field, float value) {
    if (value > 0 && value <= 1) return absl::OkStatus();
    return InvalidArgumentError("sampling.{} is {}, must be in (0, 1]", field, value);
  };
  if (!(params.temperature >= 0) || std::isinf(params.temperature)) {
    return InvalidArgumentError("sampling.temperature is {}, must be finite and >= 0",
                                params.temperature);
  }
  RETURN_IF_ERROR(above_to_one("top_p", params.top_p));
  RETURN_IF_ERROR(above_to_one("typical_p", params.typical_p));
  if (params.top_k < 0) {
    return InvalidArgumentError("sampling.top_k is {}, must be >= 0", params.top_k);
  }
  if (!(params.min_p >= 0 && params.min_p <= 1)) {
    return InvalidArgumentError("sampling.min_p is {}, must be in [0, 1]", params.min_p);
  }
  if (!(params.repetition_penalty > 0) || std::isinf(params.repetition_penalty)) {
    return InvalidArgumentError("sampling.repetition_penalty is {}, must be finite and > 0",
                                params.repetition_penalty);
  }
  if (!std::isfinite(params.presence_penalty)) {
    return InvalidArgumentError("sampling.presence_penalty is {}, must be finite",
                                params.presence_penalty);
  }
  if (!std::isfinite(params.frequency_penalty)) {
    return InvalidArgumentError("sampling.frequency_penalty is {}, must be finite",
                                params.frequency_penalty);
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const SamplerOptions& options, absl::Span<const int32_t> prompt) {
  if (options.vocab_size <= 0) {
    return InvalidArgumentError("vocab_size is {}, must be > 0", options.vocab_size);
  }
  RETURN_IF_ERROR(CheckParams(options.params));
  for (const auto& [token_id, bias] : options.params.logit_bias) {
    RETURN_IF_ERROR(CheckTokenId("sampling.logit_bias", token_id, options.vocab_size));
    if (!std::isfinite(bias)) {
      return InvalidArgumentError("sampling.logit_bias of token {} is {}, must be finite", token_id,
                                  bias);
    }
  }
  for (int32_t token_id : options.stop_token_ids) {
    RETURN_IF_ERROR(CheckTokenId("stop.token_ids", token_id, options.vocab_size));
  }
  for (int32_t token_id : prompt) {
    RETURN_IF_ERROR(CheckTokenId("prompt", token_id, options.vocab_size));
  }
  return absl::OkStatus();
}

bool HasPenalty(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

// An excluded token (-Inf) stays excluded, any other stays finite whatever was added to it.
float KeepFinite(float edited, float before) {
  return before == kMinusInfinity ? before : std::clamp(edited, -kLargest, kLargest);
}

}  // namespace

absl::StatusOr<Sampler> Sampler::Create(SamplerOptions options, absl::Span<const int32_t> prompt) {
  RETURN_IF_ERROR(CheckOptions(options, prompt));
  return Sampler(std::move(options), prompt);
}

Sampler::Sampler(SamplerOptions options, absl::Span<const int32_t> prompt)
    : options_(std::move(options)) {
  if (options_.top_logprobs.has_value()) {
    top_logprobs_.reserve(std::clamp(*options_.top_logprobs, 0, options_.vocab_size));
  }
  if (!HasPenalty(options_.params)) return;
  seen_.assign((options_.vocab_size + kWordBits - 1) / kWordBits, 0);
  output_counts_.assign(options_.vocab_size, 0);
  for (int32_t token_id : prompt) {
    seen_[token_id / kWordBits] |= uint64_t{1} << (token_id % kWordBits);
  }
}

bool Sampler::edits_logits() const {
  return !options_.params.logit_bias.empty() || !seen_.empty() ||
         (suppresses_stops() && !options_.stop_token_ids.empty());
}

void Sampler::EditLogits(absl::Span<float> logits) const {
  for (const auto& [token_id, bias] : options_.params.logit_bias) {
    logits[token_id] = KeepFinite(logits[token_id] + bias, logits[token_id]);
  }
  if (suppresses_stops()) {
    for (int32_t token_id : options_.stop_token_ids) logits[token_id] = kMinusInfinity;
  }
  if (!seen_.empty()) Penalize(logits);
}

void Sampler::Penalize(absl::Span<float> logits) const {
  const SamplingParams& params = options_.params;
  for (size_t word = 0; word < seen_.size(); ++word) {
    for (uint64_t bits = seen_[word]; bits != 0; bits &= bits - 1) {
      const size_t token_id = word * kWordBits + std::countr_zero(bits);
      const float before = logits[token_id];
      float logit =
          before > 0 ? before / params.repetition_penalty : before * params.repetition_penalty;
      if (const int32_t count = output_counts_[token_id]; count > 0) {
        logit -= params.frequency_penalty * static_cast<float>(count);
        logit -= params.presence_penalty;
      }
      logits[token_id] = KeepFinite(logit, before);
    }
  }
}

absl::StatusOr<SampledToken> Sampler::Sample(absl::Span<float> logits, SamplingScratch* scratch) {
  if (logits.size() != static_cast<size_t>(options_.vocab_size)) {
    return InternalError("got {} logits, must be vocab_size {}", logits.size(),
                         options_.vocab_size);
  }
  ASSIGN_OR_RETURN(LogitPeak peak, FindPeak(logits));
  if (peak.value == kMinusInfinity) return InternalError("every logit is -inf, one must be finite");
  const float raw_max = peak.value;
  if (options_.top_logprobs.has_value()) {
    scratch->raw_logits.assign(logits.begin(), logits.end());
  }
  if (edits_logits()) {
    EditLogits(logits);
    ASSIGN_OR_RETURN(peak, FindPeak(logits));
    if (peak.value == kMinusInfinity) {
      return InvalidArgumentError(
          "sampling.min_tokens is {}, but every token the model allows would stop the text",
          options_.params.min_tokens);
    }
  }

  SampledToken sampled;
  sampled.token_id = peak.token_id;
  if (!greedy()) {
    const double uniform = UniformAt(options_.seed, options_.index, num_sampled_);
    sampled.token_id = DrawToken(logits, peak.value, options_.params, uniform, scratch);
  }
  if (options_.top_logprobs.has_value()) {
    const absl::Span<const float> raw = scratch->raw_logits;
    const float lse = LogSumExp(raw, raw_max);
    sampled.chosen = LogprobOf(raw, lse, sampled.token_id);
    TopLogprobs(raw, lse, *options_.top_logprobs, &top_logprobs_);
    sampled.top = top_logprobs_;
  }
  Remember(sampled.token_id);
  return sampled;
}

void Sampler::Remember(int32_t token_id) {
  ++num_sampled_;
  if (seen_.empty()) return;
  seen_[token_id / kWordBits] |= uint64_t{1} << (token_id % kWordBits);
  ++output_counts_[token_id];
}

}  // namespace tokenbutler
