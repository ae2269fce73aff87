#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace tokenbutler {

// The merges of a byte-pair encoding: (left id, right id) -> rank and id of the merged token.
class MergeTable {
 public:
  struct Merge {
    int32_t rank = 0;
    int32_t merged_id = 0;
  };

  void Reserve(size_t num_merges) { merges_.reserve(num_merges); }
  // A pair given twice keeps its later rank, as in Hugging Face.
  void Add(int32_t left, int32_t right, Merge merge) { merges_[Key(left, right)] = merge; }
  // Null when the two never merge.
  const Merge* Find(int32_t left, int32_t right) const {
    const auto it = merges_.find(Key(left, right));
    return it == merges_.end() ? nullptr : &it->second;
  }
  // Calls visit(left, right, merge) for each merge, in no particular order.
  template <typename Visitor>
  void ForEach(Visitor visit) const {
    for (const auto& [key, merge] : merges_) {
      visit(static_cast<int32_t>(key >> 32), static_cast<int32_t>(key & 0xFFFFFFFF), merge);
    }
  }

 private:
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  absl::flat_hash_map<uint64_t, Merge> merges_;
};

// Applies merges to one word, lowest rank first and leftmost among equals: a linked list of symbols
// and a heap of candidates, n log n in the word. Keeps its memory from word to word; one per
// thread.
//
// Source: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016.
class BpeMerger {
 public:
  // `table` must outlive this.
  explicit BpeMerger(const MergeTable* table) : table_(table) {}

  // Appends to `ids` what remains of `symbols` when nothing merges any more.
  // REQUIRES: symbols.size() < 2^31.
  void Merge(absl::Span<const int32_t> symbols, std::vector<int32_t>* ids);

 private:
  struct Symbol {
    int32_t id;        // -1: swallowed by the symbol before it
    int32_t previous;  // index, -1 at the ends
    int32_t next;
  };
  struct Candidate {
    uint64_t order;  // rank << 32 | index of the left symbol
    int32_t merged_id;

    int32_t position() const { return static_cast<int32_t>(order & 0xFFFFFFFF); }
  };

  void Push(int32_t left, int32_t right);

  const MergeTable* table_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace tokenbutler
