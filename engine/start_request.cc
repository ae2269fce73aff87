#include "engine/start_request.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/status.h"
#include "engine/forking.h"
#include "engine/selection/policies.h"

namespace tokenbutler {
namespace {

absl::StatusOr<std::unique_ptr<SequenceState>> NewState(const RequestState& request, int block_size,
                                                        ModelRunner& runner) {
  const AttentionParams& attention = request.request.attention;
  if (!request.footprint.selects) return runner.NewIdleState(attention);
  const int max_tokens = request.footprint.blocks_per_sequence * block_size;
  const int num_forks = static_cast<int>(request.sequences.size()) - 1;
  const PromptObserver* observer = request.observer();
  if (observer != nullptr) {
    return runner.ContinueState(*observer->state, max_tokens, num_forks);
  }
  return runner.NewState(attention, max_tokens, num_forks);
}

void ContinuePrefix(const RequestState& request, int block_size, ModelRunner& runner,
                    BlockTable* table) {
  BlockTable from = request.prefix->table;
  StateLayout state;
  if (const PromptObserver* observer = request.observer(); observer != nullptr) {
    from.state_blocks = observer->table.state_blocks;
    state = runner.state_layout(observer->attention);
  }
  CopyPartialBlocks(from, block_size, state, runner, table);
}

void CopyIn(const PromptRows& rows, size_t block_bytes, ModelRunner& runner, BlockTable* table) {
  for (size_t b = 0; b * block_bytes < rows.blocks.size(); ++b) {
    runner.WriteBlock(absl::MakeConstSpan(rows.blocks).subspan(b * block_bytes, block_bytes),
                      table->blocks[b]);
  }
  table->num_tokens = rows.num_tokens;
}

// Policies that have not watched the rows are shown them.
absl::Status ShowRows(const RequestState& request, ModelRunner& runner) {
  const Sequence& first = request.sequences[0];
  if (request.footprint.selects && request.observer() == nullptr) {
    RETURN_IF_ERROR(runner.AdoptRows(first.block_table, first.state.get()));
  }
  if (request.hold == nullptr) return absl::OkStatus();
  for (PromptObserver& observer : request.hold->observers) {
    observer.table.num_tokens = first.block_table.num_tokens;
    RETURN_IF_ERROR(runner.AdoptRows(observer.table, observer.state.get()));
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<RequestState> MakeRequest(IncomingRequest incoming, const AdmissionLimits& limits) {
  GenerationRequest& request = incoming.request;
  const int blocks_per_sequence = incoming.footprint.blocks_per_sequence;
  auto state = std::make_unique<RequestState>();
  state->ticket = incoming.ticket;
  state->seed = incoming.seed;
  state->arrival = request.arrival == absl::InfinitePast()
                       ? incoming.now
                       : std::min(request.arrival, incoming.now);
  state->queue_limit = incoming.now + limits.config.max_queue_time;
  state->footprint = incoming.footprint;
  state->sequences.resize(static_cast<size_t>(request.sampling.n));
  for (int i = 0; i < request.sampling.n; ++i) {
    state->sequences[i].request = state.get();
    state->sequences[i].index = i;
  }
  if (!request.hold.name.empty()) {
    state->hold = std::make_unique<HeldPrompt>();
    state->hold->name = request.hold.name;
    state->hold->token_ids = request.prompt_token_ids;
    for (const AttentionParams& attention : request.hold.attentions) {
      state->hold->observers.push_back(
          {.attention = attention,
           .num_state_blocks =
               limits.runner->state_layout(attention).blocks_for(blocks_per_sequence),
           .table = {},
           .state = nullptr});
    }
  }
  state->prefix = std::move(incoming.prefix);
  state->request = std::move(request);
  const int block_size = limits.layout.block_size;
  if (state->observer() == nullptr) {  // else it is found by these parameters
    state->request.attention =
        FittedParams(state->request.attention, blocks_per_sequence * block_size, block_size);
  }
  state->sink = std::move(incoming.sink);
  return state;
}

absl::Status StartRequest(const KvLayout& layout, ModelRunner& runner, absl::Time now,
                          RequestState* request) {
  if (request->hold != nullptr) {
    for (PromptObserver& observer : request->hold->observers) {
      ASSIGN_OR_RETURN(observer.state, runner.NewObserver(observer.attention));
    }
  }
  Sequence& first = request->sequences[0];
  if (request->sparse()) {
    ASSIGN_OR_RETURN(first.state, NewState(*request, layout.block_size, runner));
    if (request->request.probe.any()) first.state->Probe(request->request.probe);
  }
  const PromptRows* rows = request->request.prompt_rows.get();
  if (request->prefix == nullptr && rows == nullptr) return absl::OkStatus();
  if (request->prefix != nullptr) {
    ContinuePrefix(*request, layout.block_size, runner, &first.block_table);
  } else {
    CopyIn(*rows, layout.block_bytes(), runner, &first.block_table);
  }
  RETURN_IF_ERROR(ShowRows(*request, runner));
  request->num_cached = request->num_prefilled = first.block_table.num_tokens;
  request->start_time = now;
  return absl::OkStatus();
}

}  // namespace tokenbutler
