#pragma once

#include <cstddef>
#include <string>

#include "absl/types/span.h"
#include "base/status.h"

namespace tokenbutler {

// A regular file mapped read-only for as long as this object lives. Movable, not copyable; the
// bytes stay where they are when it moves. Thread-compatible: the bytes may be read by any thread.
//
// A file that somebody shortens while it is mapped raises SIGBUS on access, as with every mapping:
// model files must not be rewritten in place under a running server.
class MappedFile {
 public:
  // NOT_FOUND when there is no such file; INVALID_ARGUMENT for a directory, a FIFO, a device or an
  // empty file; FAILED_PRECONDITION with the system's reason when it cannot be read. Every message
  // names the path. Never blocks on a FIFO.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  absl::Span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(std::string path, const std::byte* data, size_t size);
  void Unmap();

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tokenbutler
