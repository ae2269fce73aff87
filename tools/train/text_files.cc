#include "tools/train/text_files.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "engine/tokenizer/unicode.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostDocumentBytes = size_t{256} << 20;

std::string WithoutGz(const std::string& path) {
  return path.ends_with(".gz") ? path.substr(0, path.size() - 3) : path;
}

bool IsText(const fs::path& path) {
  const std::string name = WithoutGz(path.filename().string());
  return name.ends_with(".txt") || name.ends_with(".md") || name.ends_with(".jsonl");
}

absl::Status AddFolder(const std::string& folder, std::vector<std::string>* files) {
  std::error_code error;
  const size_t before = files->size();
  fs::recursive_directory_iterator at(folder, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    const bool is_hidden = at->path().filename().string().starts_with('.');
    if (is_hidden && at->is_directory()) at.disable_recursion_pending();
    if (!is_hidden && at->is_regular_file() && IsText(at->path())) {
      files->push_back(at->path().lexically_normal().string());
    }
  }
  if (error) return UnavailableError("{} cannot be read: {}", folder, error.message());
  if (files->size() > before) return absl::OkStatus();
  return NotFoundError("{} holds no .txt, .md or .jsonl file (each may be .gz)", folder);
}

// A file that may be gzip, read in pieces.
class PieceReader {
 public:
  static absl::StatusOr<PieceReader> Open(const std::string& path) {
    PieceReader reader(path, gzopen(path.c_str(), "rb"));
    if (reader.file_ == nullptr) {
      return UnavailableError("{} cannot be read: {}", path, std::strerror(errno));
    }
    gzbuffer(reader.file_.get(), 1 << 17);
    return reader;
  }

  // Appends the next piece; false: there is none.
  absl::StatusOr<bool> Append(std::string* text) {
    if (text->size() > kMostDocumentBytes) {
      return InvalidArgumentError("{}: a document has more than {} bytes, must be shorter", path_,
                                  kMostDocumentBytes);
    }
    constexpr unsigned kPiece = 1 << 16;
    const size_t before = text->size();
    text->resize(before + kPiece);
    const int count = gzread(file_.get(), text->data() + before, kPiece);
    text->resize(before + static_cast<size_t>(std::max(count, 0)));
    // The end of a gzip file that was cut off is told by gzerror alone.
    int error = Z_OK;
    const char* reason = gzerror(file_.get(), &error);
    if (error == Z_ERRNO) {
      return UnavailableError("{} cannot be read: {}", path_, std::strerror(errno));
    }
    if (count < 0 || (count == 0 && error != Z_OK)) {
      return DataLossError("{} is damaged: {}", path_, reason);
    }
    return count > 0;
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  PieceReader(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

absl::Status CheckUtf8(const std::string& name, std::string_view text) {
  if (IsWellFormedUtf8(text)) return absl::OkStatus();
  size_t at = 0;
  for (Utf8Char c; (c = ReadUtf8(text, at)).well_formed;) at += static_cast<size_t>(c.length);
  return InvalidArgumentError("{} is not UTF-8: byte {} is 0x{:02x}", name, at,
                              static_cast<unsigned char>(text[at]));
}

absl::Status ReadLine(const std::string& name, const std::string& field, const std::string& line,
                      const DocumentSink& sink) {
  if (line.find_first_not_of(" \t\r") == std::string::npos) return absl::OkStatus();
  RETURN_IF_ERROR(CheckUtf8(name, line));
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidArgumentError("{} is not JSON", name);
  if (!json.is_object()) return InvalidArgumentError("{} is not a JSON object", name);
  const auto at = json.find(field);
  if (at == json.end()) {
    return InvalidArgumentError("{} has no member \"{}\" (--field names it)", name, field);
  }
  if (!at->is_string()) {
    return InvalidArgumentError("{}: \"{}\" is not a text (--field names it)", name, field);
  }
  return sink(name, at->get_ref<const std::string&>());
}

absl::Status ReadLines(const std::string& path, const std::string& field, PieceReader& reader,
                       const DocumentSink& sink) {
  std::string text;
  int64_t number = 0;
  for (bool has_more = true; has_more;) {
    ASSIGN_OR_RETURN(has_more, reader.Append(&text));
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::string name = fmt::format("{}:{}", path, ++number);
      RETURN_IF_ERROR(ReadLine(name, field, text.substr(begin, end - begin), sink));
    }
    text.erase(0, begin);
  }
  return ReadLine(fmt::format("{}:{}", path, number + 1), field, text, sink);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListTextFiles(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      RETURN_IF_ERROR(AddFolder(path, &files));
    } else if (fs::exists(path, error)) {
      files.push_back(fs::path(path).lexically_normal().string());
    } else {
      return NotFoundError("{} is not there", path);
    }
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

absl::Status ReadDocuments(const std::string& path, const std::string& field,
                           const DocumentSink& sink) {
  ASSIGN_OR_RETURN(PieceReader reader, PieceReader::Open(path));
  if (WithoutGz(path).ends_with(".jsonl")) return ReadLines(path, field, reader, sink);
  std::string text;
  for (bool has_more = true; has_more;) {
    ASSIGN_OR_RETURN(has_more, reader.Append(&text));
  }
  RETURN_IF_ERROR(CheckUtf8(path, text));
  return sink(path, text);
}

}  // namespace tokenbutler
