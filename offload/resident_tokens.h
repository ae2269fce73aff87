#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "offload/block_table.h"
#include "offload/host_tier.h"
#include "offload/kv_layout.h"
#include "offload/token_selection.h"

namespace tokenbutler {

class DeviceTier;
class Transfers;

// What offloading the KV cache did for one sequence.
struct OffloadCounters {
  int64_t host_to_device_bytes = 0;
  int64_t prefetched_bytes = 0;  // of these, sent before the layer asked for them
  int64_t device_to_host_bytes = 0;
  int64_t lookups = 0;  // tokens that a layer and KV head wanted
  // Of these, already in the device tier or on their way to it (all, when it is the host).
  int64_t hits = 0;
  int64_t deferred = 0;  // of the others, left out of the step (MissRule::kDeferred)
  int64_t prefetch_issued = 0, prefetch_late = 0;  // layers; late: the layer had to wait for it
  absl::Duration transfer;                         // transfers took, added up
  absl::Duration stall;                            // the step waited for transfers
};

// Rows of one layer that a decode step sent to the device tier, or read from the host tier.
struct LayerTransfer {
  enum class Sent {
    kAtInput,         // while layer `during` was about to begin
    kAtChoice,        // candidates, when it had found them; it is `layer`
    kAtFetch,         // the chosen tokens that were missing; it is `layer`
    kAfterAttention,  // before its MLP
  };
  int32_t layer = 0;   // whose rows
  int32_t during = 0;  // the layer that was at work
  Sent sent = Sent::kAtFetch;
  int64_t bytes = 0;
};

// How much of a sequence the device tier has to hold. Numbers of tokens are per KV head.
// Sequences that say too little still work: selections that do not fit are read from the host tier.
struct ResidentOptions {
  int token_budget = 4096;      // most tokens that a selection given to Fetch has
  int candidates = 0;           // most tokens that a selection given to Prefetch has
  int sink_tokens = 128;        // first tokens; they stay
  int local_window = 512;       // last tokens, always attended
  int prediction_interval = 1;  // decode steps that the local window grows by between two scans
  // Slots for this many selections: what was wanted lately stays. More mean fewer misses and more
  // device memory.
  int selections_kept = 1;
  int num_forks = 0;  // Forks for which room is taken at once
};

// Where the chosen tokens of one layer are, for the attention kernels: KV head h's list is
// rows[h][0, num_rows[h]), in token order; row r is row r % block_size of blocks[r / block_size],
// which has the KvLayout of the store. Valid until the next call for the sequence.
struct ResidentView {
  const std::byte* const* blocks = nullptr;
  const int32_t* const* rows = nullptr;  // [num_kv_heads]
  const int32_t* num_rows = nullptr;     // [num_kv_heads]
};

// One sequence's tokens in the device tier: sink | local ring | important slots. Two kinds
// (KvStore::NewResidentTokens): `direct`, where the device tier is the host memory itself and
// nothing moves, and `staged`, a memory region of its own that transfer workers fill. Engine
// thread only; one decode step goes
//   BlockBases, then per layer: Prefetch for layers ahead (optional), Fetch, then EndStep.
class ResidentTokens {
 public:
  virtual ~ResidentTokens() = default;

  // The tokens of a fork of the sequence: nothing of it is resident yet. REQUIRES: no decode step
  // since the last prefill, so that every row is in the host tier. RESOURCE_EXHAUSTED when the
  // device tier has no room; the first ResidentOptions::num_forks calls find theirs taken already.
  virtual absl::StatusOr<std::unique_ptr<ResidentTokens>> Fork() const = 0;

  // The next step is a decode step that writes the row of token `num_tokens` - 1. Replaces `bases`
  // by the base of the block of each token up to there: where its keys and values are to be read
  // and, for the new token, written. A block whose newest rows are not in the host tier yet is
  // named by its place in the device tier, all others by their place in the host tier.
  virtual void BlockBases(const BlockTable& table, int num_tokens,
                          std::vector<std::byte*>* bases) = 0;

  // Starts to fetch what is missing of a layer's selection; waits for no transfer.
  virtual void Prefetch(int layer, const TokenSelection& selection) = 0;

  // Says where a layer's selected tokens are; waits for this layer's transfers only. With
  // `may_defer`, missing tokens are fetched for the next step instead and are left out of the view.
  virtual ResidentView Fetch(int layer, const TokenSelection& selection, bool may_defer) = 0;

  // Every layer of the step has run: its rows may go back to the host tier from now on.
  virtual void EndStep() = 0;

  // The next step is a prefill chunk that reads and writes the host tier, up to the row of token
  // `num_tokens` - 1: waits until every row is there and forgets what is resident.
  virtual void BeginPrefill(int num_tokens) = 0;

  virtual const OffloadCounters& counters() const = 0;
};

// For a device that is the CPU: see cpu/direct_tokens.cc. `host` must outlive the result.
std::unique_ptr<ResidentTokens> NewDirectTokens(const KvLayout& layout, const HostTier& host);

// What staged sequences share; not owned.
struct StagedTier {
  KvLayout layout;
  const HostTier* host = nullptr;
  DeviceTier* device = nullptr;
  Transfers* transfers = nullptr;
};

// For a device with a memory of its own: see cpu/staged_tokens.cc. INVALID_ARGUMENT when an option
// is out of range; RESOURCE_EXHAUSTED when the device tier has no room. What `tier` names must
// outlive the result.
absl::StatusOr<std::unique_ptr<ResidentTokens>> NewStagedTokens(const StagedTier& tier,
                                                                const ResidentOptions& options);

// Bytes of the device tier that a sequence takes, without its forks.
int64_t StagedBytes(const KvLayout& layout, const ResidentOptions& options);

}  // namespace tokenbutler
