#include "base/status.h"

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

absl::StatusOr<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgumentError("x is {}, must be even", x);
  return x / 2;
}

absl::StatusOr<int> Quarter(int x) {
  ASSIGN_OR_RETURN(const int half, Half(x));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

TEST(StatusTest, MacrosPropagateTheError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status(), absl::InvalidArgumentError("x is 3, must be even"));
}

TEST(StatusTest, AnnotateKeepsTheCode) {
  EXPECT_EQ(Annotate(NotFoundError("no {}", "file"), "model"),
            absl::NotFoundError("model: no file"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "model").ok());
}

}  // namespace
}  // namespace tokenbutler
