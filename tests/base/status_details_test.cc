#include "base/status_details.h"

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

TEST(StatusDetailsTest, DetailsRideOnTheStatus) {
  const absl::Status status =
      WithField(WithRetryDelay(ResourceExhaustedError("full"), absl::Milliseconds(1500)), "queue");
  EXPECT_EQ(status.message(), "full");
  EXPECT_EQ(RetryDelay(status), absl::Milliseconds(1500));
  EXPECT_EQ(FaultyField(status), "queue");
}

TEST(StatusDetailsTest, AnnotateKeepsThem) {
  const absl::Status status =
      Annotate(WithField(InvalidArgumentError("top_p is 2"), "top_p"), "sampling");
  EXPECT_EQ(status.message(), "sampling: top_p is 2");
  EXPECT_EQ(FaultyField(status), "top_p");
}

TEST(StatusDetailsTest, AbsentMeansNone) {
  EXPECT_FALSE(RetryDelay(ResourceExhaustedError("full")));
  EXPECT_FALSE(FaultyField(absl::OkStatus()));
}

TEST(StatusDetailsTest, ADelayIsAtLeastAMillisecond) {
  EXPECT_EQ(RetryDelay(WithRetryDelay(UnavailableError("x"), absl::ZeroDuration())),
            absl::Milliseconds(1));
}

}  // namespace
}  // namespace tokenbutler
