#pragma once

#include <cstdint>
#include <vector>

#include "offload/token_selection.h"

namespace tokenbutler {

// The last decision among candidates whose scores are good estimates, as a scan by the layer's own
// query has just made them. Such estimates put most tokens on the right side of the border, so only
// the keys of those near it need be read: of n candidates for m places, the best 2m - n are chosen
// by their estimates, and the other 2 (n - m) compete for what is left by better scores. Heads may
// be worked on by different threads.
class CloseCalls {
 public:
  // Takes the memory for `num_kv_heads` lists of up to `max_candidates`.
  void Reserve(int num_kv_heads, int max_candidates);

  // Begins with new candidates of `num_kv_heads` heads, at most `max_candidates` each.
  void Reset(int num_kv_heads, int max_candidates);

  // Lists the candidates of one head that estimates alone do not decide about, with their
  // estimates.
  void Find(const TokenSelection& candidates, int kv_head, int num_chosen);
  // All heads' lists, for better scores in the place of the estimates.
  TokenSelection& open() { return open_; }

  // Adds the chosen ones of one head, ascending: `num_chosen`, or all if there are fewer. REQUIRES:
  // the arguments of Find. Ties go to the lower token.
  void AddChosen(const TokenSelection& candidates, int kv_head, int num_chosen,
                 TokenSelection* selection);

 private:
  struct Head {
    std::vector<int32_t> places;  // of the open candidates among all
    std::vector<int32_t> best;    // the best of the open ones, by index
    std::vector<uint8_t> chosen;  // by candidate
  };

  TokenSelection open_;
  std::vector<Head> heads_;
};

}  // namespace tokenbutler
