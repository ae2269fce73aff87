#include "engine/step_commit.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/compute_pool.h"
#include "base/metrics.h"
#include "engine/attention_metrics.h"
#include "engine/forking.h"
#include "engine/logprobs.h"
#include "engine/request_metrics.h"

namespace tokenbutler {
namespace {

// Runs task(i) for i in [0, n): on the pool when there is one.
template <typename Task>
void ForEach(ComputePool* pool, int n, const Task& task) {
  if (pool != nullptr) {
    pool->ParallelFor(n, task);
  } else {
    for (int i = 0; i < n; ++i) task(i);
  }
}

// How a sequence ends that has all the tokens it may have.
StopEvent LengthStop(const RequestState& request) {
  StopEvent stop;
  stop.reason =
      request.footprint.context_bound ? FinishReason::kContextLength : FinishReason::kLength;
  return stop;
}

}  // namespace

StepCommitter::StepCommitter(const Engine::Parts& parts, const AdmissionLimits& limits,
                             Scheduler* scheduler)
    : parts_(parts), limits_(limits), scheduler_(scheduler) {
  workspaces_.resize(
      parts.compute_pool == nullptr ? 1 : static_cast<size_t>(parts.compute_pool->num_threads()));
}

void StepCommitter::Commit(const ScheduledStep& step) {
  SampleDecode(step);
  now_ = parts_.clock->Now();
  for (size_t i = 0; i < step.decode.size(); ++i) {
    Sequence* sequence = step.decode[i];
    if (sequence->request->end.has_value()) continue;  // a sibling failed in this step
    CountAttention(sequence);
    if (CommitPromptToken(sequence)) continue;
    if (sequence->request->scoring()) {
      CommitScored(sequence, parts_.runner->decode_logits(static_cast<int>(i)));
    } else {
      CommitSampled(sequence, samples_[i]);
    }
  }
  for (size_t c = 0; c < step.prefill.size(); ++c) {
    CommitChunk(step.prefill[c], step.plan.prefill_chunks[c],
                parts_.runner->prefill_logits(static_cast<int>(c)));
  }
}

void StepCommitter::SampleDecode(const ScheduledStep& step) {
  const int num_rows = static_cast<int>(step.decode.size());
  samples_.resize(step.decode.size());
  const int num_tasks = std::min(num_rows, static_cast<int>(workspaces_.size()));
  ForEach(parts_.compute_pool, num_tasks, [&](int task) {
    for (int row = task; row < num_rows; row += num_tasks) {
      Sequence* sequence = step.decode[row];
      if (sequence->request->scoring() || sequence->is_inside_prompt()) continue;
      samples_[row] = Sample(sequence, parts_.runner->decode_logits(row), &workspaces_[task]);
    }
  });
}

absl::StatusOr<SampledToken> StepCommitter::Sample(Sequence* sequence,
                                                   absl::Span<const float> logits,
                                                   Workspace* workspace) const {
  workspace->logits.assign(logits.begin(), logits.end());
  return sequence->sampler->Sample(absl::MakeSpan(workspace->logits), &workspace->scratch);
}

void StepCommitter::CommitDecode(Sequence* sequence, absl::Span<const float> logits) {
  if (sequence->request->end.has_value()) return;
  now_ = parts_.clock->Now();
  CountAttention(sequence);
  if (CommitPromptToken(sequence)) return;
  if (sequence->request->scoring()) {
    CommitScored(sequence, logits);
  } else {
    CommitSampled(sequence, Sample(sequence, logits, &workspaces_[0]));
  }
}

void StepCommitter::CommitChunk(RequestState* request, const StepItem& chunk,
                                absl::Span<const float> logits) {
  now_ = parts_.clock->Now();
  const int num_tokens = static_cast<int>(chunk.token_ids.size());
  request->num_prefilled += num_tokens;
  request->sequences[0].block_table.num_tokens = request->num_prefilled;
  if (request->request.output.return_progress) SendProgress(*request);
  if (chunk.logits == LogitsWanted::kAll) SendPromptLogprobs(request, chunk, logits);
  if (request->end.has_value() || request->num_prefilled < request->prefill_tokens()) return;
  if (chunk.logits == LogitsWanted::kAll) {
    const size_t vocab_size = static_cast<size_t>(limits_.vocab_size);
    logits = logits.subspan(logits.size() - vocab_size);
  }
  StartDecoding(request, logits);
}

void StepCommitter::SkipPrefill(RequestState* request) {
  now_ = parts_.clock->Now();
  StartDecoding(request, /*logits=*/{});
}

void StepCommitter::CountAttention(Sequence* sequence) const {
  if (sequence->state == nullptr) return;
  const AttentionStats stats = sequence->state->stats();
  RecordAttention(sequence->counted, stats, parts_.metrics);
  sequence->counted = stats;
}

void StepCommitter::SendProgress(const RequestState& request) const {
  request.sink->OnProgress({.total_tokens = request.prefill_tokens(),
                            .cached_tokens = request.num_cached,
                            .processed_tokens = request.num_prefilled,
                            .elapsed = now_ - request.start_time});
}

void StepCommitter::SendPromptLogprobs(RequestState* request, const StepItem& chunk,
                                       absl::Span<const float> logits) {
  // Row i is about the token after it; the prompt's last row has none.
  const std::vector<int32_t>& prompt = request->request.prompt_token_ids;
  const int count = std::min(static_cast<int>(chunk.token_ids.size()),
                             request->prompt_tokens() - 1 - chunk.start_position);
  if (count <= 0) return;
  const size_t vocab_size = static_cast<size_t>(limits_.vocab_size);
  const int top = request->request.logprobs.top.value_or(0);
  std::vector<PositionLogprobs> logprobs(static_cast<size_t>(count));
  std::vector<absl::Status> statuses(static_cast<size_t>(count));
  ForEach(parts_.compute_pool, count, [&](int i) {
    absl::StatusOr<PositionLogprobs> position =
        ComputeLogprobs(logits.subspan(static_cast<size_t>(i) * vocab_size, vocab_size),
                        prompt[chunk.start_position + i + 1], top);
    if (position.ok()) {
      logprobs[i] = *std::move(position);
    } else {
      statuses[i] = position.status();
    }
  });
  for (int i = 0; i < count; ++i) {
    if (statuses[i].ok()) continue;
    End(request,
        Annotate(statuses[i], fmt::format("prompt position {}", chunk.start_position + i)));
    return;
  }
  request->sink->OnPromptLogprobs(std::move(logprobs));
}

void StepCommitter::StartDecoding(RequestState* request, absl::Span<const float> logits) {
  request->stage = RequestState::Stage::kDecode;
  request->prefill_end_time = now_;
  parts_.metrics->prompt_tokens_total.Increment(request->prompt_tokens());
  parts_.metrics->prompt_tokens_cached_total.Increment(request->num_cached);
  parts_.metrics->request_queue_seconds.Observe(
      absl::ToDoubleSeconds(request->start_time - request->arrival));
  parts_.metrics->request_prefill_seconds.Observe(
      absl::ToDoubleSeconds(now_ - request->start_time));
  if (request->scoring()) {
    request->sequences[0].next_token = request->request.score_token_ids[0];
    if (!logits.empty()) request->sink->OnLogits(0, logits);
    return;
  }
  if (request->footprint.max_new_tokens == 0) {
    if (request->hold != nullptr) scheduler_->Hold(request);
    for (Sequence& sequence : request->sequences) {
      Finish(&sequence, LengthStop(*request));
    }
    return;
  }
  absl::Status status = Fork(request);
  if (status.ok()) status = CreateSamplers(request);
  if (!status.ok()) {
    End(request, std::move(status));
    return;
  }
  for (Sequence& sequence : request->sequences) {
    if (request->end.has_value()) return;
    if (request->request.decoded_prompt_tokens > 0) {
      sequence.next_token = request->request.prompt_token_ids[request->prefill_tokens()];
      continue;
    }
    CommitSampled(&sequence, Sample(&sequence, logits, &workspaces_[0]));
  }
}

absl::Status StepCommitter::Fork(RequestState* request) {
  const Sequence& first = request->sequences[0];
  const StateLayout state = request->footprint.selects
                                ? parts_.runner->state_layout(request->request.attention)
                                : StateLayout{};
  for (Sequence& fork : request->sequences) {
    if (fork.index == 0) continue;
    CopyPartialBlocks(first.block_table, parts_.block_pool->layout().block_size, state,
                      *parts_.runner, &fork.block_table);
    if (first.state == nullptr) continue;
    ASSIGN_OR_RETURN(fork.state, parts_.runner->ForkState(*first.state));
  }
  return absl::OkStatus();
}

absl::Status StepCommitter::CreateSamplers(RequestState* request) const {
  const GenerationRequest& asked = request->request;
  for (Sequence& sequence : request->sequences) {
    auto sampler = Sampler::Create(
        MakeSamplerOptions(asked, limits_, request->seed, sequence.index), asked.prompt_token_ids);
    if (!sampler.ok()) return sampler.status();
    sequence.sampler.emplace(*std::move(sampler));
    sequence.output.emplace(parts_.tokenizer,
                            OutputTextOptions{.index = sequence.index,
                                              .stop = asked.stop,
                                              .output = asked.output,
                                              .min_tokens = asked.sampling.min_tokens,
                                              .logprobs = asked.logprobs.top.has_value()});
  }
  return absl::OkStatus();
}

void StepCommitter::CommitScored(Sequence* sequence, absl::Span<const float> logits) {
  RequestState* request = sequence->request;
  const std::vector<int32_t>& tokens = request->request.score_token_ids;
  ++sequence->block_table.num_tokens;
  const int position = ++sequence->num_new_tokens;
  request->sink->OnLogits(position, logits);
  if (position == static_cast<int>(tokens.size())) {
    Finish(sequence, LengthStop(*request));
  } else {
    sequence->next_token = tokens[position];
  }
}

bool StepCommitter::CommitPromptToken(Sequence* sequence) const {
  if (!sequence->is_inside_prompt()) return false;
  const int next = ++sequence->block_table.num_tokens;
  sequence->next_token = sequence->request->request.prompt_token_ids[next];
  return true;
}

void StepCommitter::CommitSampled(Sequence* sequence, const absl::StatusOr<SampledToken>& sampled) {
  RequestState* request = sequence->request;
  if (!sampled.ok()) {
    End(request, sampled.status());
    return;
  }
  // The first token may come from the prefill's logits; every other from running its predecessor.
  const bool is_prefills =
      sequence->num_new_tokens == 0 && request->prefill_tokens() == request->prompt_tokens();
  if (!is_prefills) ++sequence->block_table.num_tokens;
  RecordToken(sequence);
  PositionLogprobs logprobs;
  if (sampled->chosen.has_value()) {
    logprobs.chosen = *sampled->chosen;
    logprobs.top.assign(sampled->top.begin(), sampled->top.end());
  }
  OutputText::Update update = sequence->output->Append(sampled->token_id, std::move(logprobs));
  if (update.chunk != nullptr) request->sink->OnChunk(*update.chunk);
  if (update.stop.has_value()) {
    Finish(sequence, *update.stop);
  } else if (sequence->num_new_tokens == request->footprint.max_new_tokens) {
    FlushAndFinish(sequence, LengthStop(*request));
  } else {
    sequence->next_token = sampled->token_id;
  }
}

void StepCommitter::RecordToken(Sequence* sequence) {
  RequestState* request = sequence->request;
  parts_.metrics->generation_tokens_total.Increment();
  if (request->first_token_time == absl::InfinitePast()) {
    request->first_token_time = now_;
    parts_.metrics->time_to_first_token_seconds.Observe(
        absl::ToDoubleSeconds(now_ - request->arrival));
  }
  if (++sequence->num_new_tokens == 1) {
    sequence->first_token_time = now_;
  } else {
    parts_.metrics->inter_token_latency_seconds.Observe(
        absl::ToDoubleSeconds(now_ - sequence->last_token_time));
  }
  sequence->last_token_time = now_;
}

void StepCommitter::FlushAndFinish(Sequence* sequence, const StopEvent& reason) {
  if (!sequence->output.has_value()) {
    Finish(sequence, reason);
    return;
  }
  OutputText::Update update = sequence->output->Flush();
  if (update.chunk != nullptr) sequence->request->sink->OnChunk(*update.chunk);
  Finish(sequence, update.stop.has_value() ? *update.stop : reason);
}

FinishedOutput StepCommitter::MakeFinishedOutput(const Sequence& sequence,
                                                 const StopEvent& stop) const {
  const RequestState& request = *sequence.request;
  const bool started = request.num_prefilled > 0;
  const bool prefilled = request.stage == RequestState::Stage::kDecode;
  FinishedOutput output;
  output.index = sequence.index;
  output.reason = stop.reason;
  output.matched_stop_string = stop.matched_stop_string;
  output.matched_token_id = stop.matched_token_id;
  output.prompt_tokens = request.prompt_tokens();
  output.completion_tokens = request.scoring() ? 0 : sequence.num_new_tokens;
  output.cached_tokens = request.num_cached;
  output.seed = request.seed;
  if (request.sparse()) {
    output.attention = sequence.state == nullptr ? AttentionStats{} : sequence.state->stats();
    if (sequence.state != nullptr) output.probes = sequence.state->probes();
  }
  output.queue_time = (started ? request.start_time : now_) - request.arrival;
  if (started) {
    output.prefill_time = (prefilled ? request.prefill_end_time : now_) - request.start_time;
  }
  if (output.completion_tokens > 0) {
    output.time_to_first_token = request.first_token_time - request.arrival;
    output.decode_time = sequence.last_token_time - sequence.first_token_time;
  }
  return output;
}

void StepCommitter::Finish(Sequence* sequence, const StopEvent& stop) {
  RequestState* request = sequence->request;
  CountAttention(sequence);
  FinishedOutput output = MakeFinishedOutput(*sequence, stop);
  if (request->stage != RequestState::Stage::kQueued) scheduler_->Release(sequence);
  sequence->finished = true;
  CountFinished(stop.reason, parts_.metrics);
  request->sink->OnFinished(std::move(output));
  if (std::all_of(request->sequences.begin(), request->sequences.end(),
                  [](const Sequence& s) { return s.finished; })) {
    End(request, absl::OkStatus());
  }
}

void StepCommitter::Abort(RequestState* request, const absl::Status& reason) {
  if (request->end.has_value()) return;
  now_ = parts_.clock->Now();
  if (!reason.ok()) {
    End(request, reason);
    return;
  }
  StopEvent cancelled;
  cancelled.reason = FinishReason::kCancelled;
  for (Sequence& sequence : request->sequences) {
    if (!sequence.finished) FlushAndFinish(&sequence, cancelled);
  }
}

void StepCommitter::End(RequestState* request, absl::Status status) {
  for (Sequence& sequence : request->sequences) CountAttention(&sequence);
  request->end = std::move(status);
  ended_.push_back(request);
}

}  // namespace tokenbutler
