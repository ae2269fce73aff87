#include "tests/testing/live_heap.h"

#include <malloc.h>

#include <cstddef>

// The sanitizers' allocator replaces glibc's and counts by itself; only their builds have this.
// (Of g++ and clang, only clang has the header that declares it.)
extern "C" size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

namespace tokenbutler {

int64_t LiveHeapBytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr) {
    return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
  }
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

}  // namespace tokenbutler
