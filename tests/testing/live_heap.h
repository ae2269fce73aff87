#pragma once

#include <cstdint>

namespace tokenbutler {

// Bytes of this process's heap that are allocated and not freed, on all threads. Unlike resident
// memory, they do not count what an allocator or a sanitizer keeps of freed memory.
int64_t LiveHeapBytes();

}  // namespace tokenbutler
