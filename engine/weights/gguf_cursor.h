#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "absl/types/span.h"
#include "base/status.h"

namespace tokenbutler {

static_assert(std::endian::native == std::endian::little, "model files are little-endian");

// Reads little-endian numbers and strings from a range of bytes, never past its end. Errors name
// the place ("tensor 3 'blk.0.attn_q.weight'"), the field, what it needs and what is left.
class GgufCursor {
 public:
  explicit GgufCursor(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  // Where the next reads are, for error messages: "metadata", "tensor"; `name` once it is known.
  void SetPlace(std::string_view section, uint64_t index) {
    section_ = section;
    index_ = index;
    name_ = {};
  }
  void SetName(std::string_view name) { name_ = name; }

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }

  template <typename T>
  absl::Status Read(std::string_view field, T* out) {
    static_assert(std::is_arithmetic_v<T>);
    RETURN_IF_ERROR(Need(field, sizeof(T)));
    std::memcpy(out, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return absl::OkStatus();
  }

  // `bytes` bytes as they are.
  absl::Status Take(std::string_view field, uint64_t bytes, absl::Span<const std::byte>* out) {
    RETURN_IF_ERROR(Need(field, bytes));
    *out = bytes_.subspan(offset_, bytes);
    offset_ += bytes;
    return absl::OkStatus();
  }

  // A uint64 length and that many bytes; `field` names both in messages.
  absl::Status ReadString(std::string_view field, uint64_t max_bytes, std::string_view* out) {
    uint64_t length = 0;
    RETURN_IF_ERROR(Read(field, &length));
    if (length > remaining()) {
      return Error("{} length is {}, but only {} bytes remain", field, length, remaining());
    }
    if (length > max_bytes) {
      return Error("{} length is {}, must be at most {}", field, length, max_bytes);
    }
    *out = {reinterpret_cast<const char*>(bytes_.data()) + offset_, length};
    offset_ += length;
    return absl::OkStatus();
  }

  // INVALID_ARGUMENT with the place before the message.
  template <typename... Args>
  absl::Status Error(fmt::format_string<Args...> format, Args&&... args) const {
    return AtPlace(InvalidArgumentError(format, std::forward<Args>(args)...));
  }
  absl::Status AtPlace(const absl::Status& status) const;

 private:
  absl::Status Need(std::string_view field, uint64_t bytes) const {
    if (bytes <= remaining()) return absl::OkStatus();
    return Error("{} needs {} bytes at offset {}, but only {} remain", field, bytes, offset_,
                 remaining());
  }

  absl::Span<const std::byte> bytes_;
  uint64_t offset_ = 0;
  std::string_view section_ = "header";
  uint64_t index_ = 0;
  std::string_view name_;
};

}  // namespace tokenbutler
