#include "base/numa.h"

#include <filesystem>
#include <fstream>

#include "base/buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(NumaTest, ParsesTheKernelsLists) {
  EXPECT_THAT(ParseNodeList("0\n"), ElementsAre(0));
  EXPECT_THAT(ParseNodeList("0-2,5"), ElementsAre(0, 1, 2, 5));
  EXPECT_THAT(ParseNodeList("1,3-4\n"), ElementsAre(1, 3, 4));
  for (const char* malformed : {"", "\n", "a", "0-", "-1", "2-1", "0,", "0;1", "0-1024"}) {
    EXPECT_THAT(ParseNodeList(malformed), IsEmpty()) << malformed;
  }
}

TEST(NumaTest, ReadsTheNodesThatHaveMemory) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / "numa_test";
  std::filesystem::create_directories(root / "sys/devices/system/node");
  EXPECT_THAT(MemoryNodes(root / "nowhere"), IsEmpty());
  std::ofstream(root / "sys/devices/system/node/has_memory") << "0-1\n";
  EXPECT_THAT(MemoryNodes(root), ElementsAre(0, 1));
  std::filesystem::remove_all(root);
}

TEST(NumaTest, HasNothingToDoWithoutSeveralNodes) {
  EXPECT_TRUE(PlacePages(nullptr, 4096, NumaPlacement::kInterleave, {0}));
  EXPECT_TRUE(PlacePages(nullptr, 4096, NumaPlacement::kFirstTouch, {0, 1}));
}

TEST(NumaTest, SaysWhenTheSystemRefuses) {
  // No such node is there: the system refuses, with or without the right to ask.
  Buffer buffer = Buffer::Allocate(1 << 21, MemoryKind::kHugePage).value();
  EXPECT_FALSE(PlacePages(buffer.data(), buffer.size(), NumaPlacement::kInterleave, {1022, 1023}));
  buffer.data()[0] = std::byte{1};
}

}  // namespace
}  // namespace tokenbutler
