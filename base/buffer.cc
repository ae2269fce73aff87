#include "base/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <limits>

namespace tokenbutler {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t RoundUp(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

void Buffer::Deleter::operator()(std::byte* p) const {
  if (mapped_bytes != 0) {
    munmap(p, mapped_bytes);
  } else {
    std::free(p);
  }
}

absl::StatusOr<Buffer> Buffer::Allocate(size_t bytes, MemoryKind kind) {
  Buffer buffer;
  buffer.size_ = bytes;
  buffer.kind_ = kind;
  if (bytes == 0) return buffer;
  if (bytes > std::numeric_limits<size_t>::max() / 2) {
    return ResourceExhaustedError("cannot allocate {} bytes", bytes);
  }
  if (kind == MemoryKind::kHugePage) {
    const size_t mapped = RoundUp(bytes, kHugePageBytes);
    void* p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return ResourceExhaustedError("cannot map {} bytes", bytes);
    // Advice only: where transparent huge pages are off, ordinary pages serve.
    (void)madvise(p, mapped, MADV_HUGEPAGE);
    buffer.data_ = {static_cast<std::byte*>(p), Deleter{mapped}};
    return buffer;
  }
  void* p = std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment));
  if (p == nullptr) return ResourceExhaustedError("cannot allocate {} bytes", bytes);
  buffer.data_ = {static_cast<std::byte*>(p), Deleter{}};
  return buffer;
}

}  // namespace tokenbutler
