#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tokenbutler {

// Bytes on cache lines of their own that only grow. A copy holds the same bytes.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  AlignedBytes(const AlignedBytes& other) : size_(other.size_) {
    if (size_ > 0) std::copy_n(other.data(), size_, Reserve(size_));
  }
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  AlignedBytes(AlignedBytes&&) = default;
  AlignedBytes& operator=(AlignedBytes&&) = default;

  // Takes memory for so many bytes, without touching it.
  void SetRoom(size_t bytes) { lines_.reserve(NumLines(bytes)); }
  // At least `bytes`; what was there is lost when they have to grow.
  std::byte* Reserve(size_t bytes) {
    const size_t num_lines = NumLines(bytes);
    if (lines_.size() < num_lines) lines_.resize(num_lines);
    size_ = bytes;
    return data();
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(lines_.data()); }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(lines_.data()); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  static size_t NumLines(size_t bytes) { return (bytes + sizeof(Line) - 1) / sizeof(Line); }

  size_t size_ = 0;
  std::vector<Line> lines_;
};

}  // namespace tokenbutler
