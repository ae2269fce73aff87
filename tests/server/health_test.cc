// Health as probes see it, and reflection.
#include <thread>

#include "tests/server/server_fixture.h"

namespace tokenbutler {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr char kService[] = "tokenbutler.v1.InferenceService";

grpc::Status Check(TestServer& server, const std::string& service, HealthCheckResponse* response) {
  HealthCheckRequest request;
  request.set_service(service);
  grpc::ClientContext context;
  return server.health().Check(&context, request, response);
}

TEST(HealthTest, LivenessIsNotReadiness) {
  TestServer::Options options;
  options.serving = false;
  TestServer server(options);
  HealthCheckResponse response;
  ASSERT_TRUE(Check(server, "", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING) << "a loading server lives";
  ASSERT_TRUE(Check(server, kService, &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  server.StartServing();
  ASSERT_TRUE(Check(server, kService, &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  server.StartDraining();
  ASSERT_TRUE(Check(server, kService, &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  ASSERT_TRUE(Check(server, "", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING) << "a draining server lives";
}

TEST(HealthTest, UnknownServiceIsNotFound) {
  TestServer server;
  HealthCheckResponse response;
  EXPECT_EQ(Check(server, "no.such.Service", &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(HealthTest, WatchStreamsChanges) {
  TestServer::Options options;
  options.serving = false;
  TestServer server(options);
  HealthCheckRequest request;
  request.set_service(kService);
  grpc::ClientContext context;
  const auto reader = server.health().Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  server.StartServing();
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  server.StartDraining();
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  context.TryCancel();
  while (reader->Read(&response)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// ServerReflectionRequest{list_services: "*"}: field 7, a string.
RawResult ListServices(TestServer& server) {
  return RawCall(server.NewChannel(),
                 "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*");
}

TEST(ReflectionTest, ListsTheServicesWhenOn) {
  TestServer server;
  const RawResult result = ListServices(server);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_EQ(result.messages.size(), 1);
  EXPECT_THAT(result.messages[0], ::testing::HasSubstr(kService));
}

TEST(ReflectionTest, IsUnimplementedWhenOff) {
  TestServer::Options options;
  options.reflection = false;
  TestServer server(options);
  EXPECT_EQ(ListServices(server).status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(server.Generate(TextRequest("Hello", 1)).status.ok());
}

}  // namespace
}  // namespace tokenbutler
