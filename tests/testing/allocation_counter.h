#pragma once

#include <cstddef>

namespace tokenbutler {

// Bytes that operator new handed out on this thread while the object lived. Link
// allocation_counter.cc, which replaces the global operator new.
class AllocationCounter {
 public:
  AllocationCounter();
  size_t total_bytes() const;

 private:
  size_t begin_;
};

}  // namespace tokenbutler
