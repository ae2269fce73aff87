#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {

// The rows of a long measurement in a file, one line of JSON each, so that a run that was
// interrupted goes on where it was. The first line holds facts on which all rows depend. The file
// belongs to one run at a time.
class Checkpoint {
 public:
  using Json = nlohmann::ordered_json;

  // Reads the rows that `path` has already; "": keeps none. A last line that was cut off is
  // dropped, and nothing else of the file is touched. FAILED_PRECONDITION when the file's facts are
  // others or another run has the file open, INVALID_ARGUMENT naming the line when it is no such
  // file, INTERNAL when it cannot be read and written.
  static absl::StatusOr<Checkpoint> Open(const std::string& path, const Json& facts);

  // The row that has all of `key`'s members with these values; null: none.
  const Json* Find(const Json& key) const;
  // All rows that have.
  std::vector<Json> FindAll(const Json& key) const;
  // INTERNAL when it cannot be written.
  absl::Status Add(Json row);
  const std::vector<Json>& rows() const { return rows_; }

 private:
  class File;

  explicit Checkpoint(std::string path) : path_(std::move(path)) {}
  // The bytes of whole lines.
  absl::StatusOr<size_t> Parse(const std::string& text, const Json& facts);
  absl::Status Write(const Json& line) const;

  std::string path_;
  std::shared_ptr<File> file_;  // null: there is none
  std::vector<Json> rows_;
};

}  // namespace tokenbutler
