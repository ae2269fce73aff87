#include "engine/tokenizer/bpe_merge.h"

#include <algorithm>

namespace tokenbutler {

void BpeMerger::Push(int32_t left, int32_t right) {
  const MergeTable::Merge* merge = table_->Find(symbols_[left].id, symbols_[right].id);
  if (merge == nullptr) return;
  const uint64_t order = static_cast<uint64_t>(merge->rank) << 32 | static_cast<uint32_t>(left);
  heap_.push_back({.order = order, .merged_id = merge->merged_id});
}

void BpeMerger::Merge(absl::Span<const int32_t> symbols, std::vector<int32_t>* ids) {
  const int32_t n = static_cast<int32_t>(symbols.size());
  if (n == 0) return;
  if (n == 1) {
    ids->push_back(symbols[0]);
    return;
  }
  // The heap's front is the lowest rank, and the leftmost position among equals.
  const auto after = [](const Candidate& a, const Candidate& b) { return a.order > b.order; };
  symbols_.clear();
  heap_.clear();
  for (int32_t i = 0; i < n; ++i) {
    symbols_.push_back({.id = symbols[i], .previous = i - 1, .next = i + 1 < n ? i + 1 : -1});
  }
  for (int32_t i = 0; i + 1 < n; ++i) Push(i, i + 1);
  std::make_heap(heap_.begin(), heap_.end(), after);

  const auto push_candidate = [&](int32_t left, int32_t right) {
    const size_t size_before = heap_.size();
    Push(left, right);
    if (heap_.size() > size_before) std::push_heap(heap_.begin(), heap_.end(), after);
  };
  while (!heap_.empty()) {
    const Candidate top = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), after);
    heap_.pop_back();
    const int32_t left_index = top.position();
    Symbol& left = symbols_[left_index];
    if (left.id < 0 || left.next < 0) continue;
    const int32_t right_index = left.next;
    Symbol& right = symbols_[right_index];
    // The symbols may have changed since. As in Hugging Face the candidate still counts when they
    // now merge to the same token in another way.
    const MergeTable::Merge* merge = table_->Find(left.id, right.id);
    if (merge == nullptr || merge->merged_id != top.merged_id) continue;
    left.id = top.merged_id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) {
      symbols_[left.next].previous = left_index;
    }
    if (left.previous >= 0) push_candidate(left.previous, left_index);
    if (left.next >= 0) push_candidate(left_index, left.next);
  }
  for (int32_t i = 0; i >= 0; i = symbols_[i].next) ids->push_back(symbols_[i].id);
}

}  // namespace tokenbutler
