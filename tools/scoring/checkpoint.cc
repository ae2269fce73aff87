#include "tools/scoring/checkpoint.h"

#include <fstream>
#include <iterator>
#include <utility>

namespace tokenbutler {
namespace {

bool Matches(const Checkpoint::Json& row, const Checkpoint::Json& key) {
  for (const auto& [name, value] : key.items()) {
    if (!row.contains(name) || row[name] != value) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& path, const Json& facts) {
  Checkpoint checkpoint(path);
  if (path.empty()) return checkpoint;
  std::string text;
  if (std::ifstream in(path, std::ios::binary); in) {
    text.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  RETURN_IF_ERROR(checkpoint.Parse(text, facts));
  // Written anew: without the line that was cut off.
  RETURN_IF_ERROR(checkpoint.Write(facts, /*truncate=*/true));
  for (const Json& row : checkpoint.rows_) {
    RETURN_IF_ERROR(checkpoint.Write(row, /*truncate=*/false));
  }
  return checkpoint;
}

absl::Status Checkpoint::Parse(const std::string& text, const Json& facts) {
  bool is_first = true;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    Json line = Json::parse(text.begin() + at, text.begin() + end, nullptr, false);
    at = end + 1;
    if (!line.is_object()) {
      return InvalidArgumentError("{} has a line that is no JSON object; give another file", path_);
    }
    if (!std::exchange(is_first, false)) {
      rows_.push_back(std::move(line));
    } else if (line != facts) {
      return FailedPreconditionError(
          "{} is from a run with {}, this one has {}; give another file or remove it", path_,
          line.dump(), facts.dump());
    }
  }
  return absl::OkStatus();
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
  if (!path_.empty()) RETURN_IF_ERROR(Write(row, /*truncate=*/false));
  rows_.push_back(std::move(row));
  return absl::OkStatus();
}

absl::Status Checkpoint::Write(const Json& line, bool truncate) const {
  std::ofstream out(path_, truncate ? std::ios::trunc : std::ios::app);
  out << line.dump() << "\n";
  out.flush();
  if (!out) return InternalError("cannot write {}", path_);
  return absl::OkStatus();
}

}  // namespace tokenbutler
