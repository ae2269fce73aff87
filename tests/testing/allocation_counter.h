#pragma once

#include <cstddef>

namespace tokenbutler {

// What operator new handed out on this thread while the object lived. Link allocation_counter.cc,
// which replaces the global operator new.
class AllocationCounter {
 public:
  AllocationCounter();
  size_t total_bytes() const;
  size_t num_allocations() const;

 private:
  size_t begin_bytes_;
  size_t begin_allocations_;
};

}  // namespace tokenbutler
