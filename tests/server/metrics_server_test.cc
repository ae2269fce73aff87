// The metrics page over HTTP, and its numbers against what clients saw.
#include "server/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "tests/server/server_fixture.h"
#include "tests/server/server_process.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

TEST(MetricsServerTest, ServesThePageOnAFreePort) {
  Metrics metrics({.version = "1", .torch = "2", .cuda = "none", .isa = "avx2"});
  const auto server = MetricsServer::Start("127.0.0.1", 0, metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  metrics.generation_tokens_total.Increment(17);
  const std::string page = HttpGet((*server)->port(), "/metrics");
  EXPECT_THAT(page, HasSubstr("200 OK"));
  EXPECT_THAT(page, HasSubstr("\ntokenbutler_generation_tokens_total 17\n"));
  EXPECT_THAT(page, HasSubstr("tokenbutler_requests_total{code=\"DATA_LOSS\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("tokenbutler_build_info{cuda=\"none\",isa=\"avx2\","));
  EXPECT_THAT(page, HasSubstr("process_resident_memory_bytes "));
}

TEST(MetricsServerTest, ConnectionsThatSayNothingDoNotKeepTheScraperOut) {
  Metrics metrics({.version = "1", .torch = "2", .cuda = "none", .isa = "avx2"});
  const auto server = MetricsServer::Start("127.0.0.1", 0, metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>((*server)->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<int> silent;
  for (int i = 0; i < 8; ++i) {
    silent.push_back(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect(silent.back(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  const absl::Time start = absl::Now();
  EXPECT_THAT(HttpGet((*server)->port(), "/metrics"), HasSubstr("200 OK"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10)) << "Prometheus gives up after 10 s";
  for (const int fd : silent) close(fd);
}

TEST(MetricsServerTest, ATakenPortIsAnErrorThatNamesIt) {
  Metrics metrics({.version = "1", .torch = "2", .cuda = "none", .isa = "avx2"});
  const auto first = MetricsServer::Start("127.0.0.1", 0, metrics);
  ASSERT_TRUE(first.ok());
  const auto second = MetricsServer::Start("127.0.0.1", (*first)->port(), metrics);
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_THAT(
      std::string(second.status().message()),
      ::testing::AllOf(HasSubstr("--metrics-port"), HasSubstr(std::to_string((*first)->port()))));
}

TEST(GrpcServerTest, ATakenPortIsAnErrorThatNamesIt) {
  class Nothing : public v1::InferenceService::Service {
  } service;
  GrpcServerOptions options;
  options.port = 0;
  const auto first = GrpcServer::Start(options, &service);
  ASSERT_TRUE(first.ok());
  options.port = (*first)->port();
  const auto second = GrpcServer::Start(options, &service);
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(std::to_string((*first)->port())));
}

// Many calls of every outcome from several clients; each counter must be what they saw.
TEST(CountersTest, EqualWhatClientsSaw) {
  TestServer::Options options;
  options.engine.max_running = 3;
  TestServer server(options);
  constexpr int kClients = 6;
  constexpr int kCalls = 40;
  std::vector<std::map<int, int>> codes(kClients);
  std::vector<int64_t> prompt(kClients), completion(kClients), finished(kClients);
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937 random(client);
      for (int i = 0; i < kCalls; ++i) {
        v1::GenerateRequest request =
            TextRequest(std::string(1 + random() % 50, 'x'), static_cast<int>(random() % 30));
        request.mutable_sampling()->set_n(1 + static_cast<int>(random() % 3));
        const int kind = static_cast<int>(random() % 6);
        if (kind == 0) request.set_model("other");
        if (kind == 1) request.mutable_sampling()->set_top_p(7);
        if (kind == 2) request.set_session_name("s");
        const StreamResult result = server.Generate(request);
        ++codes[client][result.status.error_code()];
        const auto ends = result.finished();
        if (!ends.empty()) prompt[client] += ends[0].usage().prompt_tokens();
        for (const v1::Finished& end : ends) {
          completion[client] += end.usage().completion_tokens();
          ++finished[client];
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  server.ExpectIdle();
  std::map<int, int> all;
  int64_t all_prompt = 0, all_completion = 0, all_finished = 0;
  for (int client = 0; client < kClients; ++client) {
    for (const auto& [code, count] : codes[client]) all[code] += count;
    all_prompt += prompt[client];
    all_completion += completion[client];
    all_finished += finished[client];
  }
  Metrics& metrics = server.metrics();
  for (int code = 0; code <= 16; ++code) {
    EXPECT_EQ(metrics.requests_total(static_cast<absl::StatusCode>(code)).Value(), all[code])
        << code;
  }
  EXPECT_GT(all[grpc::StatusCode::OK], 50);
  EXPECT_EQ(metrics.prompt_tokens_total.Value(), all_prompt);
  EXPECT_EQ(metrics.generation_tokens_total.Value(), all_completion);
  EXPECT_EQ(metrics.finished_total.length.Value(), all_finished);
}

}  // namespace
}  // namespace tokenbutler
