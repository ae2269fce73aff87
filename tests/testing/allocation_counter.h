#pragma once

#include <cstddef>

namespace tokenbutler {

// What malloc and its kin, and so operator new, handed out on this thread while the object lived:
// to our own code and to every library that the program uses. Link allocation_counter.cc, which
// replaces them (glibc).
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
