#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/admission.h"
#include "engine/held_prompt.h"
#include "engine/output_text.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/step_plan.h"
#include "engine/token_sink.h"
#include "offload/block_table.h"

namespace tokenbutler {

struct RequestState;

// One of a request's n completions: the unit that the engine decodes. Engine thread only.
struct Sequence {
  RequestState* request = nullptr;  // that owns it
  int index = 0;
  BlockTable block_table;
  // Of the runner: set from admission on when the attention is sparse, the forks' from the fork on.
  std::unique_ptr<SequenceState> state;
  AttentionStats counted;   // of `state`, what the metrics have been told
  int32_t next_token = -1;  // known, but its K and V rows are not computed yet
  int num_new_tokens = 0;   // sampled, or scored
  bool finished = false;    // its OnFinished was sent, its blocks are released
  absl::Time first_token_time, last_token_time;
  // What turns logits into chunks; set when the prompt is prefilled, never in scoring mode.
  std::optional<Sampler> sampler;
  std::optional<OutputText> output;

  // Whether the running step's token is one of the prompt, with more of it to come: the step's
  // logits are of no use (GenerationRequest::decoded_prompt_tokens).
  bool is_inside_prompt() const;
};

// A request from Submit to OnDone, with the sequences it owns. Filled by the submitting thread,
// then the engine thread's alone. Never moves: sequences and step plans point into it.
struct RequestState {
  enum class Stage { kQueued, kPrefill, kDecode };

  GenerationRequest request;
  std::shared_ptr<TokenSink> sink;
  Footprint footprint;
  uint64_t ticket = 0;                              // order of submission, unique
  uint64_t seed = 0;                                // the request's, or drawn
  absl::Time arrival;                               // of the RPC
  absl::Time queue_limit = absl::InfiniteFuture();  // must have been admitted by then

  // The held prompt that this one begins with; null: none.
  std::shared_ptr<const HeldPrompt> prefix;
  // The prompt that this one is to become, from Submit until it is held; null: it is not held.
  std::unique_ptr<HeldPrompt> hold;

  Stage stage = Stage::kQueued;
  int num_prefilled = 0;  // prompt tokens whose rows are written, in the first sequence's blocks
  int num_cached = 0;     // of these, not run: of the prefix, or copied in
  std::vector<BlockId> reserved_blocks;  // Footprint::reserved_blocks
  std::vector<Sequence> sequences;       // [n]
  absl::Time start_time;                 // first chunk scheduled
  absl::Time first_token_time = absl::InfinitePast();
  absl::Time prefill_end_time = absl::InfinitePast();
  // Set when the request is over and only waits for its OnDone with this status.
  std::optional<absl::Status> end;

  // The scheduler's own.
  absl::Time queue_rank;       // earlier goes first
  int times_overtaken = 0;     // by requests behind it in the queue
  bool failed_to_fit = false;  // its blocks were not free when it was first tried
  uint64_t rotation = 0;       // place in the round-robin of prefills; smaller goes first

  int prompt_tokens() const { return static_cast<int>(request.prompt_token_ids.size()); }
  // Those that are run in chunks, before decoding starts.
  int prefill_tokens() const { return prompt_tokens() - request.decoded_prompt_tokens; }
  bool sparse() const { return request.attention.sparse(); }
  // What the attention's policy has learned of the prefix already; null: nothing.
  const PromptObserver* observer() const {
    return prefix == nullptr || !footprint.selects ? nullptr : prefix->Find(request.attention);
  }
  bool scoring() const { return !request.score_token_ids.empty(); }
};

inline bool Sequence::is_inside_prompt() const {
  return block_table.num_tokens + 1 < request->prompt_tokens();
}

}  // namespace tokenbutler
