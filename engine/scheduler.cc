#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace tokenbutler {

bool Scheduler::GoesFirst::operator()(const RequestState* a, const RequestState* b) const {
  return std::tie(a->queue_rank, a->ticket) < std::tie(b->queue_rank, b->ticket);
}

Scheduler::Scheduler(const EngineConfig& config, BlockPool* pool) : config_(config), pool_(pool) {
  // Nothing grows while steps run.
  const size_t seqs = static_cast<size_t>(config.max_num_seqs);
  running_.reserve(seqs);
  candidates_.reserve(seqs);
  admitted_.reserve(seqs);
  passed_.reserve(static_cast<size_t>(config.max_waiting_requests));
  step_.decode.reserve(seqs);
  step_.prefill.reserve(seqs);
  step_.plan.decode.reserve(seqs);
  step_.plan.prefill_chunks.reserve(seqs);
}

void Scheduler::Enqueue(RequestState* request) {
  request->queue_rank = request->arrival - request->request.priority * config_.priority_step;
  waiting_.insert(request);
  waiting_prompt_tokens_ += request->prompt_tokens();
  next_queue_expiry_ =
      std::min({next_queue_expiry_, request->queue_limit, request->request.deadline});
  may_admit_ = true;
}

const ScheduledStep& Scheduler::Schedule(absl::Time now) {
  step_.decode.clear();
  step_.prefill.clear();
  step_.plan.decode.clear();
  step_.plan.prefill_chunks.clear();
  PlanDecode();
  PlanPrefill(now);
  ++step_number_;
  return step_;
}

absl::Span<RequestState* const> Scheduler::Admit() {
  admitted_.clear();
  if (!may_admit_) return admitted_;
  may_admit_ = false;
  passed_.clear();
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    RequestState* request = *it;
    if (num_places_taken_ >= config_.max_num_seqs) break;
    if (TryAdmit(request)) {
      admitted_.push_back(request);
      it = waiting_.erase(it);
      bool patience_over = false;
      for (RequestState* passed : passed_) {
        patience_over |= ++passed->times_overtaken >= config_.max_overtakes;
      }
      if (patience_over) break;
      continue;
    }
    if (request->times_overtaken >= config_.max_overtakes) break;
    passed_.push_back(request);
    ++it;
  }
  return admitted_;
}

bool Scheduler::TryAdmit(RequestState* request) {
  if (request->footprint.total_blocks > pool_->num_free()) {
    if (!request->failed_to_fit) ++num_failed_to_fit_;
    request->failed_to_fit = true;
    return false;
  }
  if (num_places_taken_ + request->request.sampling.n > config_.max_num_seqs) return false;
  TakeBlocks(request);
  waiting_prompt_tokens_ -= request->prompt_tokens();
  num_places_taken_ += request->request.sampling.n;
  request->stage = RequestState::Stage::kPrefill;
  request->rotation = 2 * (step_number_ - 1);
  running_.push_back(request);
  return true;
}

void Scheduler::TakeBlocks(RequestState* request) {
  const Footprint& footprint = request->footprint;
  const BlockTable& first = request->sequences[0].block_table;
  for (Sequence& sequence : request->sequences) {
    BlockTable& table = sequence.block_table;
    if (sequence.index > 0) {
      Take(footprint.blocks_per_sequence, footprint.shared_blocks, first.blocks, &table.blocks);
      Take(footprint.state_blocks_per_sequence, footprint.shared_state_blocks, first.state_blocks,
           &table.state_blocks);
      continue;
    }
    static const std::vector<BlockId> kNone;
    const PromptObserver* observer = request->observer();
    Take(footprint.blocks_per_sequence, footprint.held_blocks,
         request->prefix == nullptr ? kNone : request->prefix->table.blocks, &table.blocks);
    Take(footprint.state_blocks_per_sequence, footprint.held_state_blocks,
         observer == nullptr ? kNone : observer->table.state_blocks, &table.state_blocks);
  }
  pool_->Allocate(footprint.reserved_blocks, &request->reserved_blocks);
  num_reserved_blocks_ += footprint.reserved_blocks;
  if (request->hold == nullptr) return;
  for (PromptObserver& observer : request->hold->observers) {
    observer.table.blocks = first.blocks;
    pool_->Allocate(observer.num_state_blocks, &observer.table.state_blocks);
  }
}

void Scheduler::Take(int count, int num_shared, const std::vector<BlockId>& first,
                     std::vector<BlockId>* blocks) {
  blocks->reserve(static_cast<size_t>(count));
  blocks->assign(first.begin(), first.begin() + num_shared);
  pool_->Share(*blocks);
  pool_->Allocate(count - num_shared, blocks);
}

void Scheduler::PlanDecode() {
  for (RequestState* request : running_) {
    if (request->stage != RequestState::Stage::kDecode) continue;
    for (Sequence& sequence : request->sequences) {
      if (sequence.finished) continue;
      step_.decode.push_back(&sequence);
      step_.plan.decode.push_back(
          {.block_table = &sequence.block_table,
           .token_ids = absl::MakeConstSpan(&sequence.next_token, 1),
           .start_position = sequence.block_table.num_tokens,
           .logits = sequence.is_inside_prompt() ? LogitsWanted::kNone : LogitsWanted::kLast,
           .state = sequence.state.get()});
    }
  }
}

void Scheduler::PlanPrefill(absl::Time now) {
  candidates_.clear();
  for (RequestState* request : running_) {
    if (request->stage == RequestState::Stage::kPrefill) candidates_.push_back(request);
  }
  if (candidates_.empty()) return;
  const bool by_priority = ++num_prefill_steps_ % kFairPrefillInterval != 0;
  std::sort(candidates_.begin(), candidates_.end(),
            [by_priority](const RequestState* a, const RequestState* b) {
              if (by_priority && a->request.priority != b->request.priority) {
                return a->request.priority > b->request.priority;
              }
              return std::tie(a->rotation, a->ticket) < std::tie(b->rotation, b->ticket);
            });
  int budget = config_.prefill_chunk_tokens;
  for (RequestState* request : candidates_) {
    const int num_tokens =
        std::min(config_.prefill_chunk_tokens, request->prefill_tokens() - request->num_prefilled);
    if (num_tokens > budget) continue;
    AddChunk(request, num_tokens, now);
    budget -= num_tokens;
    if (budget == 0) return;
  }
}

void Scheduler::AddChunk(RequestState* request, int num_tokens, absl::Time now) {
  if (request->num_prefilled == 0) request->start_time = now;
  request->rotation = 2 * step_number_ + 1;
  const bool last = request->num_prefilled + num_tokens == request->prefill_tokens();
  const bool continues = request->request.decoded_prompt_tokens == 0 &&
                         (request->footprint.max_new_tokens > 0 || request->scoring());
  LogitsWanted logits = last && continues ? LogitsWanted::kLast : LogitsWanted::kNone;
  if (request->request.logprobs.include_prompt) logits = LogitsWanted::kAll;
  step_.prefill.push_back(request);
  step_.plan.prefill_chunks.push_back(
      {.block_table = &request->sequences[0].block_table,
       .token_ids = absl::MakeConstSpan(request->request.prompt_token_ids)
                        .subspan(static_cast<size_t>(request->num_prefilled),
                                 static_cast<size_t>(num_tokens)),
       .start_position = request->num_prefilled,
       .logits = logits,
       .state = request->sequences[0].state.get()});
  if (request->hold != nullptr) {
    step_.plan.prefill_chunks.back().observers = request->hold->observers;
  }
}

void Scheduler::ReleaseBlocks(Sequence* sequence) {
  sequence->state.reset();  // first: what it still has under way may use the blocks
  pool_->Release(sequence->block_table.blocks);
  pool_->Release(sequence->block_table.state_blocks);
  sequence->block_table = BlockTable{};
}

void Scheduler::ReleaseOthers(RequestState* request) {
  if (request->hold != nullptr) Release(request->hold.get());
  ReleaseReserved(&request->reserved_blocks);
}

void Scheduler::ReleaseReserved(std::vector<BlockId>* blocks) {
  pool_->Release(*blocks);
  num_reserved_blocks_ -= static_cast<int>(blocks->size());
  blocks->clear();
}

void Scheduler::Hold(RequestState* request) {
  HeldPrompt& hold = *request->hold;
  hold.table = request->sequences[0].block_table;
  pool_->Share(hold.table.blocks);
  hold.reserved_blocks = std::move(request->reserved_blocks);
  request->reserved_blocks.clear();
}

void Scheduler::Release(HeldPrompt* prompt) {
  may_admit_ = true;
  for (PromptObserver& observer : prompt->observers) {
    observer.state.reset();  // first: it may use the blocks
    pool_->Release(observer.table.state_blocks);
    observer.table = BlockTable{};
  }
  pool_->Release(prompt->table.blocks);
  ReleaseReserved(&prompt->reserved_blocks);
  prompt->table = BlockTable{};
}

void Scheduler::PutBack(RequestState* request) {
  for (Sequence& sequence : request->sequences) ReleaseBlocks(&sequence);
  ReleaseOthers(request);
  num_places_taken_ -= request->request.sampling.n;
  running_.erase(std::find(running_.begin(), running_.end(), request));
  request->stage = RequestState::Stage::kQueued;
  waiting_.insert(request);
  waiting_prompt_tokens_ += request->prompt_tokens();
  next_queue_expiry_ =
      std::min({next_queue_expiry_, request->queue_limit, request->request.deadline});
}

void Scheduler::Release(Sequence* sequence) {
  ReleaseBlocks(sequence);
  sequence->finished = true;
  --num_places_taken_;
  may_admit_ = true;
}

void Scheduler::Remove(RequestState* request) {
  may_admit_ = true;
  if (request->stage == RequestState::Stage::kQueued) {
    waiting_.erase(request);
    waiting_prompt_tokens_ -= request->prompt_tokens();
    return;
  }
  for (Sequence& sequence : request->sequences) {
    if (!sequence.finished) Release(&sequence);
  }
  ReleaseOthers(request);
  running_.erase(std::find(running_.begin(), running_.end(), request));
}

void Scheduler::CollectExpired(absl::Time now, std::vector<RequestState*>* expired) {
  for (RequestState* request : running_) {
    if (now >= request->request.deadline) expired->push_back(request);
  }
  if (now < next_queue_expiry_) return;
  next_queue_expiry_ = absl::InfiniteFuture();
  for (RequestState* request : waiting_) {
    const absl::Time limit = std::min(request->queue_limit, request->request.deadline);
    if (now >= limit) {
      expired->push_back(request);
    } else {
      next_queue_expiry_ = std::min(next_queue_expiry_, limit);
    }
  }
}

}  // namespace tokenbutler
