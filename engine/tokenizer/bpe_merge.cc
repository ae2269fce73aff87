#include "engine/tokenizer/bpe_merge.h"

#include <algorithm>
#include <tuple>

namespace tokenbutler {

void BpeMerger::Push(int32_t left, int32_t right) {
  const MergeTable::Merge* merge = table_->Find(symbols_[left].id, symbols_[right].id);
  if (merge == nullptr) return;
  heap_.push_back({.rank = merge->rank, .position = left, .merged_id = merge->merged_id});
}

void BpeMerger::Merge(absl::Span<const int32_t> symbols, std::vector<int32_t>* ids) {
  const int32_t n = static_cast<int32_t>(symbols.size());
  if (n == 0) return;
  if (n == 1) {
    ids->push_back(symbols[0]);
    return;
  }
  // The heap's front is the lowest rank, and the leftmost position among equals.
  const auto after = [](const Candidate& a, const Candidate& b) {
    return std::tie(a.rank, a.position) > std::tie(b.rank, b.position);
  };
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
    Symbol& left = symbols_[top.position];
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
      symbols_[left.next].previous = top.position;
    }
    if (left.previous >= 0) push_candidate(left.previous, top.position);
    if (left.next >= 0) push_candidate(top.position, left.next);
  }
  for (int32_t i = 0; i >= 0; i = symbols_[i].next) ids->push_back(symbols_[i].id);
}

}  // namespace tokenbutler
