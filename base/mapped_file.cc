#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tokenbutler {
namespace {

// Closes a file descriptor at the end of a scope.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::Status OpenError(const std::string& path, int error) {
  if (error == ENOENT || error == ENOTDIR) return NotFoundError("no such file: {}", path);
  return FailedPreconditionError("cannot open {}: {}", path, std::strerror(error));
}

absl::Status RequireRegularFile(const std::string& path, const struct stat& status) {
  if (S_ISDIR(status.st_mode)) {
    return InvalidArgumentError("{} is a directory, wanted a regular file", path);
  }
  if (!S_ISREG(status.st_mode)) return InvalidArgumentError("{} is not a regular file", path);
  if (status.st_size <= 0) return InvalidArgumentError("{} is empty (0 bytes)", path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO that nobody writes to must not hang.
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return OpenError(path, errno);
  struct stat status = {};
  if (fstat(fd.get(), &status) != 0) return OpenError(path, errno);
  RETURN_IF_ERROR(RequireRegularFile(path, status));
  const size_t size = static_cast<size_t>(status.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) {
    return FailedPreconditionError("cannot map {} ({} bytes): {}", path, size,
                                   std::strerror(errno));
  }
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(std::string path, const std::byte* data, size_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    Unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() { Unmap(); }

void MappedFile::Unmap() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
  data_ = nullptr;
}

}  // namespace tokenbutler
