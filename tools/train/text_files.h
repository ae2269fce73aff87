#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tokenbutler {

// Called with each document: what tells it apart ("book.txt", "data.jsonl:17") and its text.
using DocumentSink = std::function<absl::Status(const std::string& name, std::string_view text)>;

// The files that `paths` stand for, each once, in the order of names. A folder stands for its
// .txt, .md and .jsonl files and their .gz, subfolders included, hidden ones not. NOT_FOUND naming
// a path that is not there, or a folder that has no such file.
absl::StatusOr<std::vector<std::string>> ListTextFiles(const std::vector<std::string>& paths);

// Reads a file's documents: of a .jsonl or .jsonl.gz file each line's member `field`, of any other
// the whole file, uncompressed if it is gzip. No more than a document is in memory at a time.
// Errors name the file, and the line: UNAVAILABLE when it cannot be read, DATA_LOSS for damaged
// gzip, INVALID_ARGUMENT for a line that is no JSON object with such a text, or text that is not
// UTF-8. Errors of `sink` end the reading.
absl::Status ReadDocuments(const std::string& path, const std::string& field,
                           const DocumentSink& sink);

}  // namespace tokenbutler
