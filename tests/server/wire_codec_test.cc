#include "server/wire_codec.h"

#include <string>

#include "base/status_details.h"
#include "gmock/gmock.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"
#include "tokenbutler/v1/inference.pb.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

grpc::ByteBuffer Bytes(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(WireCodecTest, WhatIsSerializedParsesAgain) {
  v1::GenerateRequest request;
  request.set_text("grüße 🦉");
  request.mutable_sampling()->set_seed(42);
  v1::GenerateRequest parsed;
  ASSERT_TRUE(ParseMessage(SerializeMessage(request), &parsed).ok());
  EXPECT_EQ(parsed.text(), "grüße 🦉");
  EXPECT_EQ(parsed.sampling().seed(), 42);
}

TEST(WireCodecTest, NoBytesAreAnEmptyMessage) {
  v1::GenerateRequest parsed;
  EXPECT_TRUE(ParseMessage(grpc::ByteBuffer(), &parsed).ok());
  EXPECT_TRUE(ParseMessage(Bytes(""), &parsed).ok());
}

TEST(WireCodecTest, BytesThatAreNoMessageNameTheType) {
  v1::GenerateRequest parsed;
  const absl::Status status = ParseMessage(Bytes("\x0a\xff\xff\xff\xff\x0f"), &parsed);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(Message(status), HasSubstr("tokenbutler.v1.GenerateRequest"));
}

struct BadUtf8 {
  const char* what;
  std::string text;
  size_t position;  // of the first ill-formed byte
};

class BadUtf8Test : public ::testing::TestWithParam<BadUtf8> {};

TEST_P(BadUtf8Test, IsNamedWithFieldAndPosition) {
  v1::GenerateRequest request;
  auto* chat = request.mutable_chat();
  chat->add_messages()->set_role("user");
  auto* message = chat->add_messages();
  message->set_role("user");
  // set_content() would log an error of protobuf's; the bytes go in by hand instead.
  *message->mutable_content() = GetParam().text;
  v1::GenerateRequest parsed;
  const absl::Status status = ParseMessage(Bytes(request.SerializeAsString()), &parsed);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << GetParam().what;
  EXPECT_EQ(FaultyField(status), "chat.messages[1].content");
  EXPECT_THAT(Message(status), HasSubstr("at byte " + std::to_string(GetParam().position)));
}

INSTANTIATE_TEST_SUITE_P(Table3_7, BadUtf8Test,
                         ::testing::Values(BadUtf8{"stray continuation", "a\x80", 1},
                                           BadUtf8{"overlong two bytes", "\xC0\xAF", 0},
                                           BadUtf8{"overlong three bytes", "ab\xE0\x80\x80", 2},
                                           BadUtf8{"surrogate", "\xED\xA0\x80", 0},
                                           BadUtf8{"overlong four bytes", "\xF0\x80\x80\x80", 0},
                                           BadUtf8{"above U+10FFFF", "\xF4\x90\x80\x80", 0},
                                           BadUtf8{"truncated", "abc\xE2\x82", 3},
                                           BadUtf8{"Latin-1", "gr\xFC\xDF", 2}));

}  // namespace
}  // namespace tokenbutler
