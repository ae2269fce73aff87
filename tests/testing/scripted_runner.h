#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "engine/step_plan.h"
#include "offload/kv_layout.h"

namespace tokenbutler {

// A deterministic ModelRunner without a model. The "K and V row" it keeps for each token is a hash
// of the sequence's tokens up to it, computed from the row before through the block table, exactly
// as attention would read it; logits are made from that hash. So they depend on the sequence's own
// tokens only, and a row that was not written, was overwritten by another sequence or was not
// copied at a fork shows as other tokens.
//
// Any sparse policy is taken and attends to everything. Its "state", one record per full KV block,
// is a copy of the hash of the block's last token; a record that is wrong when a decode step reads
// it shows as other tokens, too.
class ScriptedRunner : public ModelRunner {
 public:
  // The token that gets the largest logit after `token` at `position`; -1: as the hash will have
  // it.
  using Script = std::function<int32_t(int position, int32_t token)>;
  struct ItemRecord {
    int start_position = 0;
    int num_tokens = 0;
    bool decode = false;
    int32_t first_token = 0;
  };

  // As many slots as the pool that the block tables come from.
  ScriptedRunner(const KvLayout& layout, int num_blocks, int vocab_size);

  // Set these before the engine starts; they are used on the engine thread.
  Script script;
  // Called before a plan is run; an error fails the plan.
  std::function<absl::Status(const StepPlan&)> before_run;
  // Called on each row of logits of the token at `position`, last.
  std::function<void(int position, int32_t token, absl::Span<float> logits)> edit_logits;
  // Called at each decode step of a sparse sequence: what its stats gain. Default: all tokens
  // attended.
  std::function<void(const AttentionParams& params, int context_len, AttentionStats* stats)> attend;
  // Called before a state is made or forked; an error fails it.
  std::function<absl::Status(const AttentionParams& params)> before_state;
  std::vector<AttentionPolicy> learning;  // policies that have to watch the prefill
  PolicyMemory memory;                    // of every sparse sequence
  int device_states = 1 << 20;  // states that the device tier has room for, forks to come included
  bool record = true;           // keep steps()

  int vocab_size() const override { return vocab_size_; }
  absl::Status Run(const StepPlan& plan) override;
  absl::Span<const float> decode_logits(int item) const override { return View(decode_[item]); }
  absl::Span<const float> prefill_logits(int chunk) const override { return View(prefill_[chunk]); }
  void CopyBlock(BlockId from, BlockId to) override;
  // Rows are the words of `bytes` in turn.
  void WriteBlock(absl::Span<const std::byte> bytes, BlockId to) override;
  absl::Status CheckAttention(const AttentionParams& params) const override;
  StateLayout state_layout(const AttentionParams& params) const override;
  absl::StatusOr<std::unique_ptr<SequenceState>> NewState(const AttentionParams& params,
                                                          int max_tokens, int num_forks) override;
  absl::StatusOr<std::unique_ptr<SequenceState>> ForkState(const SequenceState& state) override;
  absl::StatusOr<std::unique_ptr<SequenceState>> NewIdleState(
      const AttentionParams& params) override;
  bool learns_from_prefill(const AttentionParams& params) const override;
  PolicyMemory policy_memory(const AttentionParams&, int) const override { return memory; }
  absl::StatusOr<std::unique_ptr<SequenceState>> NewObserver(
      const AttentionParams& params) override;
  absl::StatusOr<std::unique_ptr<SequenceState>> ContinueState(const SequenceState& observer,
                                                               int max_tokens,
                                                               int num_forks) override;
  // Copies the block's hashes into the records.
  absl::Status AdoptRows(const BlockTable& table, SequenceState* state) override;
  int64_t device_kv_used_bytes() const override { return int64_t{num_device_states_} * 100; }

  // The logits that a sequence of these tokens has after its last one.
  std::vector<float> LogitsAfter(absl::Span<const int32_t> tokens) const;

  // Any thread. From Hold() on Run waits for a permit; Permit(n) gives n of them, Resume() ends it.
  void Hold();
  void Permit(int steps);
  void Resume();
  // Waits until Run stands waiting for a permit. False after 60 s.
  bool WaitUntilHeld();
  std::vector<std::vector<ItemRecord>> steps() const;
  int num_steps() const;
  int num_block_copies() const;
  int num_states() const { return num_states_; }  // that live

 private:
  class State;
  struct Rows {  // of logits_
    size_t begin = 0, count = 0;
  };

  absl::Span<const float> View(Rows rows) const {
    return absl::MakeConstSpan(logits_).subspan(rows.begin * static_cast<size_t>(vocab_size_),
                                                rows.count * static_cast<size_t>(vocab_size_));
  }
  uint64_t& Row(const BlockTable& table, int position);
  uint64_t& Record(const BlockTable& table, int kv_block);
  void UpdateRecords(const BlockTable& table, int begin, int end);
  bool RecordsAreRight(const BlockTable& table, int num_tokens);
  Rows RunItem(const StepItem& item);
  void AppendLogits(uint64_t hash, int position, int32_t token, std::vector<float>* logits) const;
  void WaitForPermit();

  const KvLayout layout_;
  const int vocab_size_;
  std::vector<uint64_t> rows_;  // [num_blocks * block_size]
  std::atomic<int> num_states_ = 0;
  std::atomic<int> num_device_states_ = 0;
  std::vector<float> logits_;  // of the last plan
  std::vector<Rows> decode_, prefill_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  int permits_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_steps_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_block_copies_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::vector<ItemRecord>> steps_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tokenbutler
