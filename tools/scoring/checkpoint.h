#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {

// The rows of a long measurement in a file, one line of JSON each, so that a run that was
// interrupted goes on where it was. The first line holds facts on which all rows depend.
class Checkpoint {
 public:
  using Json = nlohmann::ordered_json;

  // Reads the rows that `path` has already; "": keeps none. A last line that was cut off is
  // dropped. FAILED_PRECONDITION when the file's facts are others, INVALID_ARGUMENT when it is no
  // such file, INTERNAL when it cannot be written.
  static absl::StatusOr<Checkpoint> Open(const std::string& path, const Json& facts);

  // The row that has all of `key`'s members with these values; null: none.
  const Json* Find(const Json& key) const;
  // All rows that have.
  std::vector<Json> FindAll(const Json& key) const;
  // INTERNAL when it cannot be written.
  absl::Status Add(Json row);
  const std::vector<Json>& rows() const { return rows_; }

 private:
  explicit Checkpoint(std::string path) : path_(std::move(path)) {}
  absl::Status Write(const Json& line, bool truncate) const;
  absl::Status Parse(const std::string& text, const Json& facts);

  std::string path_;
  std::vector<Json> rows_;
};

}  // namespace tokenbutler
