#include "base/buffer.h"

#include <cstdint>
#include <cstring>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

TEST(BufferTest, IsAlignedAndWritable) {
  for (const MemoryKind kind : {MemoryKind::kHeap, MemoryKind::kHugePage}) {
    for (const size_t bytes : {size_t{1}, size_t{63}, size_t{4096}, size_t{3} << 20}) {
      absl::StatusOr<Buffer> buffer = Buffer::Allocate(bytes, kind);
      ASSERT_TRUE(buffer.ok()) << buffer.status();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
      EXPECT_EQ(buffer->size(), bytes);
      std::memset(buffer->data(), 0x5a, bytes);
      EXPECT_EQ(buffer->as<uint8_t>()[bytes - 1], 0x5a);
    }
  }
}

TEST(BufferTest, ZeroBytesIsEmpty) {
  absl::StatusOr<Buffer> buffer = Buffer::Allocate(0, MemoryKind::kHeap);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->data(), nullptr);
}

TEST(BufferTest, ImpossibleSizeIsAnErrorThatNamesIt) {
  absl::StatusOr<Buffer> buffer = Buffer::Allocate(SIZE_MAX - 5, MemoryKind::kHugePage);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(buffer.status().message()).find("18446744073709551610"), std::string::npos);
}

}  // namespace
}  // namespace tokenbutler
