#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tokenbutler {

// A stable merge sort that survives a comparison which fails or has no order (a NaN, a mixed list):
// std::stable_sort may run out of bounds then. `less(a, b)` returns absl::StatusOr<bool>.
template <typename Item, typename Less>
absl::Status StableSort(std::vector<Item>* items, Less less) {
  const size_t size = items->size();
  std::vector<Item> from = std::move(*items);
  std::vector<Item> to(size);
  for (size_t width = 1; width < size; width *= 2) {
    for (size_t begin = 0; begin < size; begin += 2 * width) {
      const size_t middle = std::min(begin + width, size);
      const size_t end = std::min(begin + 2 * width, size);
      size_t left = begin;
      size_t right = middle;
      for (size_t out = begin; out < end; ++out) {
        bool take_right = left == middle;
        if (left < middle && right < end) {
          ASSIGN_OR_RETURN(take_right, less(from[right], from[left]));
        }
        to[out] = std::move(take_right ? from[right++] : from[left++]);
      }
    }
    std::swap(from, to);
  }
  *items = std::move(from);
  return absl::OkStatus();
}

}  // namespace tokenbutler
