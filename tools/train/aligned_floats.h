#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace tokenbutler {

// Memory on cache lines of its own: matrix products over it give the same bits in every run.
template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  CacheLineAllocator() = default;
  template <typename U>
  explicit CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(64)));
  }
  void deallocate(T* memory, size_t) { ::operator delete(memory, std::align_val_t(64)); }
  bool operator==(const CacheLineAllocator&) const { return true; }
};

using AlignedFloats = std::vector<float, CacheLineAllocator<float>>;

}  // namespace tokenbutler
