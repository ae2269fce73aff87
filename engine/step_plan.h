#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "engine/attention_probes.h"
#include "engine/attention_stats.h"
#include "engine/selection/attention_params.h"
#include "engine/selection/policy_memory.h"
#include "offload/block_table.h"
#include "offload/state_layout.h"

namespace tokenbutler {

// What a runner keeps of a sparse sequence beside its KV rows: its selection policy at work and its
// part of the device tier. Made by the runner, owned by the sequence; engine thread only.
class SequenceState {
 public:
  virtual ~SequenceState() = default;
  virtual AttentionStats stats() const = 0;
  // What the last decode step moved to the device tier, in the order of sending. Valid until the
  // next step of the sequence.
  virtual absl::Span<const LayerTransfer> transfers() const { return {}; }
  // What probes are to find out from now on, and what they have found.
  virtual void Probe(const ProbeParams& wanted) { (void)wanted; }
  virtual const AttentionProbes& probes() const;
};

// A policy that watches a prompt's prefill for sequences that will go on from it, and never
// attends.
struct PromptObserver {
  AttentionParams attention;
  int num_state_blocks = 0;
  BlockTable table;  // the prompt's blocks, not owned, and the state blocks of this policy
  std::unique_ptr<SequenceState> state;  // of ModelRunner::NewObserver
};

enum class LogitsWanted { kNone, kLast, kAll };

// One sequence's share of a step: `token_ids` are run at positions start_position,
// start_position + 1, ..., their K and V rows written into `block_table` at those positions.
struct StepItem {
  const BlockTable* block_table = nullptr;  // not owned; holds room for the tokens
  absl::Span<const int32_t> token_ids;      // not owned; one token in a decode item
  int start_position = 0;
  LogitsWanted logits = LogitsWanted::kLast;
  SequenceState* state = nullptr;  // of the runner that runs the step; null: dense attention
  absl::Span<const PromptObserver> observers = {};  // of a prefill chunk; not owned
};

// What one step computes: every running sequence's decode token, and chunks of prefills.
struct StepPlan {
  std::vector<StepItem> decode;  // one token each, any number
  std::vector<StepItem> prefill_chunks;
};

// Runs steps. One implementation computes (step_runner.h), tests have another. Engine thread only.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual int vocab_size() const = 0;

  // After an OK return, logits(i) of decode item i and prefill_logits(c) of chunk c are valid until
  // the next Run: [num_rows, vocab_size] float32, num_rows = 0, 1 or the chunk's tokens as wanted.
  // The result of an item depends on that item alone, bit for bit, never on what shares the step.
  virtual absl::Status Run(const StepPlan& plan) = 0;
  virtual absl::Span<const float> decode_logits(int item) const = 0;
  virtual absl::Span<const float> prefill_logits(int chunk) const = 0;

  // Copies K and V rows of a partly filled block when a sequence is forked (n > 1).
  virtual void CopyBlock(BlockId from, BlockId to) = 0;
  // Replaces all rows of a block. `bytes`: as many as a block of the KV cache's layout has.
  virtual void WriteBlock(absl::Span<const std::byte> bytes, BlockId to) = 0;

  // Whether sequences with this attention can be run: INVALID_ARGUMENT or UNIMPLEMENTED naming the
  // field otherwise. Any thread.
  virtual absl::Status CheckAttention(const AttentionParams& params) const;
  // Memory outside of blocks that the policy of such a sequence takes at most, when it has
  // `num_tokens` tokens in the end. Any thread.
  virtual PolicyMemory policy_memory(const AttentionParams& params, int num_tokens) const {
    (void)params, (void)num_tokens;
    return {};
  }
  // The state blocks that such a sequence needs. Any thread.
  virtual StateLayout state_layout(const AttentionParams& params) const {
    (void)params;
    return {};
  }
  // The state of a new sequence that will never have more than `max_tokens` tokens: takes the
  // memory that its decode steps work in, so that they need not, and room for what `num_forks`
  // forks will have in the device tier, so that they cannot fail for lack of it.
  // RESOURCE_EXHAUSTED when there is none. REQUIRES: sparse parameters that CheckAttention takes.
  virtual absl::StatusOr<std::unique_ptr<SequenceState>> NewState(const AttentionParams& params,
                                                                  int max_tokens, int num_forks);
  // A copy for a fork of the sequence; its stats begin at zero.
  virtual absl::StatusOr<std::unique_ptr<SequenceState>> ForkState(const SequenceState& state);

  // The state of a sequence that will never have more tokens than its budget holds: attends to all
  // and keeps nothing. Needs no state blocks.
  virtual absl::StatusOr<std::unique_ptr<SequenceState>> NewIdleState(
      const AttentionParams& params);

  // Prompts that others go on from (held_prompt.h).
  // Whether the policy learns from a prompt's queries, so that it has to watch the prefill itself.
  // Any thread.
  virtual bool learns_from_prefill(const AttentionParams& params) const {
    (void)params;
    return false;
  }
  virtual absl::StatusOr<std::unique_ptr<SequenceState>> NewObserver(const AttentionParams& params);
  // As NewState, of a sequence whose rows so far are those that `observer` has watched and whose
  // state blocks hold the same bytes.
  virtual absl::StatusOr<std::unique_ptr<SequenceState>> ContinueState(
      const SequenceState& observer, int max_tokens, int num_forks);
  // Shows a new state the rows of all tokens that `table` holds, which no step of its sequence
  // wrote. REQUIRES: not learns_from_prefill.
  virtual absl::Status AdoptRows(const BlockTable& table, SequenceState* state);
  // Bytes of the device tier that hold rows of sequences. 0 when the device is the host.
  virtual int64_t device_kv_used_bytes() const { return 0; }
};

}  // namespace tokenbutler
