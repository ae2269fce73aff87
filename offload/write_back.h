#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "offload/kv_layout.h"
#include "offload/resident_tokens.h"
#include "offload/transfer.h"

namespace tokenbutler {

// The way of one sequence's new rows from the device tier to the host tier: runs of rows of one
// block, in token order. Knows the watermark that keeps everybody from reading a row in the host
// tier before it is there. Engine thread only.
class WriteBack {
 public:
  // `transfers` and `counters` must outlive this; what is moved is counted there.
  WriteBack(const KvLayout& layout, Transfers* transfers, OffloadCounters* counters);
  WriteBack(const WriteBack&) = delete;
  WriteBack& operator=(const WriteBack&) = delete;
  // Leaves when no row of these is on its way any more.
  ~WriteBack();

  // The rows of tokens before this are in the host tier.
  int num_host_tokens();
  // The rows of tokens before this are there or on their way.
  int num_started() const { return num_started_; }

  // Others have written all rows before `num_tokens` to the host tier. REQUIRES: nothing is on its
  // way.
  void Reset(int num_tokens) { num_done_ = num_started_ = num_tokens; }
  // Starts to move the rows of [num_started(), end), which lie in one block.
  void Start(const std::byte* device_block, std::byte* host_block, int end);
  // Waits until num_host_tokens() >= num_tokens. REQUIRES: num_started() >= num_tokens.
  void FinishUpTo(int num_tokens);

 private:
  struct Run {
    int end = 0;
    TransferTicket ticket;
  };
  void FinishFirst(bool is_stall);

  const KvLayout layout_;
  Transfers* const transfers_;
  OffloadCounters* const counters_;
  int num_done_ = 0;
  int num_started_ = 0;
  std::deque<Run> runs_;  // on their way, in token order
  std::vector<RowCopy> copies_;
};

}  // namespace tokenbutler
