#include "server/grpc_status.h"

#include "base/status.h"
#include "base/status_details.h"
#include "tests/server/server_fixture.h"

namespace tokenbutler {
namespace {

TEST(GrpcStatusTest, OkStaysOkWithoutDetails) {
  const grpc::Status status = ToGrpcStatus(absl::OkStatus());
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.error_details(), "");
}

TEST(GrpcStatusTest, EveryCodeAndItsNameSurvive) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status error(static_cast<absl::StatusCode>(code), "words");
    const grpc::Status status = ToGrpcStatus(error);
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "words");
    const auto info = Detail<google::rpc::ErrorInfo>(status);
    ASSERT_TRUE(info);
    EXPECT_EQ(info->reason(), StatusCodeName(error.code()));
    EXPECT_EQ(info->domain(), "tokenbutler");
  }
}

TEST(GrpcStatusTest, AFieldBecomesBadRequest) {
  const grpc::Status status =
      ToGrpcStatus(WithField(InvalidArgumentError("top_p is {}", 2), "sampling.top_p"));
  const auto bad = Detail<google::rpc::BadRequest>(status);
  ASSERT_TRUE(bad);
  ASSERT_EQ(bad->field_violations_size(), 1);
  EXPECT_EQ(bad->field_violations(0).field(), "sampling.top_p");
  EXPECT_EQ(bad->field_violations(0).description(), "top_p is 2");
  EXPECT_FALSE(Detail<google::rpc::RetryInfo>(status));
}

TEST(GrpcStatusTest, ARetryDelayBecomesRetryInfo) {
  const grpc::Status status =
      ToGrpcStatus(WithRetryDelay(ResourceExhaustedError("full"), absl::Milliseconds(2500)));
  const auto retry = Detail<google::rpc::RetryInfo>(status);
  ASSERT_TRUE(retry);
  EXPECT_EQ(retry->retry_delay().seconds(), 2);
  EXPECT_EQ(retry->retry_delay().nanos(), 500'000'000);
  EXPECT_FALSE(Detail<google::rpc::BadRequest>(status));
}

}  // namespace
}  // namespace tokenbutler
