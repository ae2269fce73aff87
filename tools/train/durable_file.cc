#include "tools/train/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace tokenbutler {
namespace {

bool WriteAll(int file, absl::Span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

// False: errno says why.
bool WriteWhole(const std::string& path, absl::Span<const char> bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return false;
  const bool is_written = WriteAll(file, bytes) && fsync(file) == 0;
  const int error = errno;
  if (close(file) != 0 && is_written) return false;
  errno = error;
  return is_written;
}

// So that the renaming outlasts a power failure.
void SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int file = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  fsync(file);  // some file systems cannot; the file itself is safe
  close(file);
}

}  // namespace

absl::Status WriteFileDurably(const std::string& path, absl::Span<const char> bytes) {
  const std::string unfinished = path + ".unfinished";
  if (WriteWhole(unfinished, bytes) && std::rename(unfinished.c_str(), path.c_str()) == 0) {
    SyncFolderOf(path);
    return absl::OkStatus();
  }
  const int error = errno;
  const std::string reason = std::strerror(error);
  std::error_code ignored;
  std::filesystem::remove(unfinished, ignored);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return ResourceExhaustedError("{} cannot be written: {}", path, reason);
  }
  return UnavailableError("{} cannot be written: {}", path, reason);
}

}  // namespace tokenbutler
