#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"

namespace tokenbutler {

// Where a buffer's bytes live. Pinned and device memory join with the CUDA backend.
enum class MemoryKind {
  kHeap,      // ordinary pages
  kHugePage,  // transparent huge pages when the system grants them, ordinary pages otherwise
};

// Owns a 64-byte-aligned region of memory (page-aligned for kHugePage), zero-filled by the
// system on first touch for kHugePage, uninitialised for kHeap. Movable, not copyable.
class Buffer {
 public:
  Buffer() = default;

  // RESOURCE_EXHAUSTED naming `bytes` when the system refuses. `bytes` may be 0.
  static absl::StatusOr<Buffer> Allocate(size_t bytes, MemoryKind kind);

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  MemoryKind kind() const { return kind_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_.get());
  }

 private:
  struct Deleter {
    Deleter() : mapped_bytes(0) {}
    explicit Deleter(size_t bytes) : mapped_bytes(bytes) {}
    size_t mapped_bytes;  // 0: free(), otherwise munmap()
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Deleter> data_;
  size_t size_ = 0;
  MemoryKind kind_ = MemoryKind::kHeap;
};

}  // namespace tokenbutler
