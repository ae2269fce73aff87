#include "engine/weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/weights/safetensors_header.h"

namespace tokenbutler {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's bound

absl::StatusOr<std::string_view> TakeHeader(absl::Span<const std::byte> bytes) {
  if (bytes.size() < kLengthBytes) {
    return InvalidArgumentError("the header length needs 8 bytes, but the file has only {}",
                                bytes.size());
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const uint64_t bound = std::min<uint64_t>(bytes.size() - kLengthBytes, kMaxHeaderBytes);
  if (length < 2 || length > bound) {
    return InvalidArgumentError("the header length is {}, must be from 2 to {}", length, bound);
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  if (header.front() != '{') {
    return InvalidArgumentError("the header starts with byte {:#04x}, must start with '{{'",
                                static_cast<unsigned>(static_cast<uint8_t>(header.front())));
  }
  return header;
}

absl::Status RefuseDuplicates(std::vector<SafetensorsEntry>& entries) {
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].name == entries[i - 1].name) {
      return InvalidArgumentError("tensor name '{}' stands twice, must be unique", entries[i].name);
    }
  }
  return absl::OkStatus();
}

// The data section must be covered exactly. REQUIRES: every entry's begin <= end.
absl::Status CheckCoverage(std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  uint64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.end > data_bytes) {
      return InvalidArgumentError(
          "tensor '{}': data_offsets are [{}, {}], but the file has only {} data bytes", entry.name,
          entry.begin, entry.end, data_bytes);
    }
    if (entry.begin != covered) {
      return InvalidArgumentError(
          "tensor '{}': data_offsets begin at {}, must begin at {} (no gap, no overlap)",
          entry.name, entry.begin, covered);
    }
    covered = entry.end;
  }
  if (covered == data_bytes) return absl::OkStatus();
  return InvalidArgumentError("the tensors cover {} data bytes, but the file has {}", covered,
                              data_bytes);
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  absl::StatusOr<SafetensorsFile> file = Parse(mapped.bytes());
  if (!file.ok()) return Annotate(file.status(), path);
  file->file_ = std::move(mapped);
  return file;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(absl::Span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const std::string_view header, TakeHeader(bytes));
  SafetensorsFile file;
  ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries,
                   ParseSafetensorsHeader(header, &file.metadata_));
  const absl::Span<const std::byte> data = bytes.subspan(kLengthBytes + header.size());
  RETURN_IF_ERROR(RefuseDuplicates(entries));
  RETURN_IF_ERROR(CheckCoverage(entries, data.size()));

  file.tensors_.reserve(entries.size());
  for (SafetensorsEntry& entry : entries) {
    file.tensors_.push_back({std::move(entry.name), entry.type, std::move(entry.shape),
                             data.subspan(entry.begin, entry.end - entry.begin)});
  }
  std::sort(file.tensors_.begin(), file.tensors_.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return file;
}

const SafetensorsTensor* SafetensorsFile::FindTensor(std::string_view name) const {
  const auto it = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const SafetensorsTensor& t, std::string_view wanted) { return t.name < wanted; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

}  // namespace tokenbutler
