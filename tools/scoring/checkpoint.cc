#include "tools/scoring/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tokenbutler {
namespace {

bool Matches(const Checkpoint::Json& row, const Checkpoint::Json& key) {
  for (const auto& [name, value] : key.items()) {
    if (!row.contains(name) || row[name] != value) return false;
  }
  return true;
}

// Names of files need not be UTF-8, JSON has to be.
std::string LineOf(const Checkpoint::Json& json) {
  return json.dump(-1, ' ', false, Checkpoint::Json::error_handler_t::replace) + "\n";
}

}  // namespace

// An open file that no other run has.
class Checkpoint::File {
 public:
  static absl::StatusOr<std::shared_ptr<File>> Open(const std::string& path) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) {
      return InternalError("{} cannot be opened for reading and writing: {}", path,
                           std::strerror(errno));
    }
    auto file = std::make_shared<File>(fd);
    struct stat status = {};
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
      return InvalidArgumentError("{} is no regular file", path);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      return FailedPreconditionError("{} is used by another run; wait for it, or give another file",
                                     path);
    }
    return file;
  }
  explicit File(int fd) : fd_(fd) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(fd_); }

  // From where the file is read to its end.
  bool ReadAll(std::string* text) const {
    char buffer[1 << 16];
    ssize_t count = 0;
    while ((count = read(fd_, buffer, sizeof(buffer))) > 0) text->append(buffer, count);
    return count == 0;
  }
  bool Truncate(size_t size) const { return ftruncate(fd_, static_cast<off_t>(size)) == 0; }
  bool Append(const std::string& line) const {
    for (size_t done = 0; done < line.size();) {
      const ssize_t count = write(fd_, line.data() + done, line.size() - done);
      if (count <= 0) return false;
      done += static_cast<size_t>(count);
    }
    return true;
  }

 private:
  const int fd_;
};

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& path, const Json& facts) {
  Checkpoint checkpoint(path);
  if (path.empty()) return checkpoint;
  ASSIGN_OR_RETURN(checkpoint.file_, File::Open(path));
  std::string text;
  if (!checkpoint.file_->ReadAll(&text)) {
    return InternalError("{} cannot be read: {}", path, std::strerror(errno));
  }
  ASSIGN_OR_RETURN(const size_t whole, checkpoint.Parse(text, facts));
  if (whole < text.size() && !checkpoint.file_->Truncate(whole)) {
    return InternalError("cannot write {}: {}", path, std::strerror(errno));
  }
  if (whole == 0) RETURN_IF_ERROR(checkpoint.Write(facts));
  return checkpoint;
}

absl::StatusOr<size_t> Checkpoint::Parse(const std::string& text, const Json& facts) {
  size_t at = 0;
  for (int number = 1; at < text.size(); ++number) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    Json line = Json::parse(text.begin() + at, text.begin() + end, nullptr, false);
    at = end + 1;
    if (!line.is_object()) {
      return InvalidArgumentError("line {} of {} is no JSON object; give another file", number,
                                  path_);
    }
    if (number > 1) {
      rows_.push_back(std::move(line));
    } else if (line != facts) {
      return FailedPreconditionError(
          "{} is from a run with {}, this one has {}; give another file or remove it", path_,
          line.dump(), facts.dump());
    }
  }
  if (at == 0 && !LineOf(facts).starts_with(text)) {
    return InvalidArgumentError("{} holds something else than results; give another file", path_);
  }
  return at;
}

const Checkpoint::Json* Checkpoint::Find(const Json& key) const {
  for (const Json& row : rows_) {
    if (Matches(row, key)) return &row;
  }
  return nullptr;
}

std::vector<Checkpoint::Json> Checkpoint::FindAll(const Json& key) const {
  std::vector<Json> found;
  for (const Json& row : rows_) {
    if (Matches(row, key)) found.push_back(row);
  }
  return found;
}

absl::Status Checkpoint::Add(Json row) {
  if (file_ != nullptr) RETURN_IF_ERROR(Write(row));
  rows_.push_back(std::move(row));
  return absl::OkStatus();
}

absl::Status Checkpoint::Write(const Json& line) const {
  if (file_->Append(LineOf(line))) return absl::OkStatus();
  return InternalError("cannot write {}: {}", path_, std::strerror(errno));
}

}  // namespace tokenbutler
