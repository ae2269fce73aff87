#include "base/mapped_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temporary_folder.h"

namespace tokenbutler {
namespace {

using testing::HasSubstr;

class MappedFileTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    return temporary_.Write(name, bytes);
  }
  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

void ExpectError(const std::string& path, absl::StatusCode code, const std::string& message) {
  const absl::Status status = MappedFile::Open(path).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
}

TEST_F(MappedFileTest, MapsTheBytesAndKeepsThemWhenMoved) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(Write("f", "hello"));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::byte* const data = file->bytes().data();
  MappedFile moved = *std::move(file);
  EXPECT_EQ(moved.bytes().data(), data);
  ASSERT_EQ(moved.bytes().size(), 5u);
  EXPECT_EQ(moved.bytes()[4], std::byte{'o'});
  absl::StatusOr<MappedFile> other = MappedFile::Open(Write("g", "!"));
  ASSERT_TRUE(other.ok());
  moved = *std::move(other);
  EXPECT_EQ(moved.bytes().size(), 1u);
}

TEST_F(MappedFileTest, RefusesWhatIsNotAFileWithBytes) {
  ExpectError((folder_ / "none").string(), absl::StatusCode::kNotFound, "no such file");
  ExpectError(folder_.string(), absl::StatusCode::kInvalidArgument, "is a directory");
  ExpectError(Write("empty", ""), absl::StatusCode::kInvalidArgument, "is empty");
  const std::string fifo = (folder_ / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ExpectError(fifo, absl::StatusCode::kInvalidArgument, "is not a regular file");
  ExpectError("/dev/null", absl::StatusCode::kInvalidArgument, "is not a regular file");
  ExpectError(Write("f", "x") + "/g", absl::StatusCode::kNotFound, "no such file");
}

TEST_F(MappedFileTest, SaysWhyAFileCannotBeRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read every file; run the tests as another user";
  const std::string path = Write("secret", "x");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  ExpectError(path, absl::StatusCode::kFailedPrecondition, "Permission denied");
}

}  // namespace
}  // namespace tokenbutler
