#include <atomic>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/transfer.h"
#include "tests/testing/fake_clock.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Transfers> Workers(const TransferOptions& options) {
  auto workers = NewTransferWorkers(options);
  EXPECT_TRUE(workers.ok()) << workers.status();
  return workers.ok() ? *std::move(workers) : nullptr;
}

RowCopy Copy(const std::vector<std::byte>& from, std::vector<std::byte>* to, size_t offset,
             size_t bytes) {
  return {.from = from.data() + offset, .to = to->data() + offset, .bytes = bytes};
}

TEST(TransferWorkersTest, MovesAllCopiesOfATransferBeforeFinishReturns) {
  const auto transfers = Workers({.num_workers = 3});
  const std::vector<std::byte> from(4096, std::byte{7});
  std::vector<std::byte> to(4096), back(4096);
  std::vector<TransferTicket> tickets;
  for (size_t i = 0; i < 16; ++i) {
    tickets.push_back(
        transfers->Submit(TransferDirection::kHostToDevice,
                          {Copy(from, &to, i * 256, 128), Copy(from, &to, i * 256 + 128, 128)}));
  }
  for (const TransferTicket ticket : tickets) transfers->Finish(ticket);
  EXPECT_EQ(to, from);
  const TransferTicket ticket =
      transfers->Submit(TransferDirection::kDeviceToHost, {Copy(to, &back, 0, 4096)});
  transfers->Finish(ticket);
  EXPECT_TRUE(back == from);
}

TEST(TransferWorkersTest, AModelledLinkDeliversInTurnWithBandwidthAndLatency) {
  FakeClock clock;
  const auto transfers = Workers({.link_gbps = 1, .link_latency_us = 10, .clock = &clock});
  const std::vector<std::byte> from(4000);
  std::vector<std::byte> to(4000);
  const auto submit = [&](TransferDirection direction, size_t offset, size_t bytes) {
    return transfers->Submit(direction, {Copy(from, &to, offset, bytes)});
  };
  const TransferTicket first = submit(TransferDirection::kHostToDevice, 0, 1000);
  const TransferTicket second = submit(TransferDirection::kHostToDevice, 1000, 2000);
  const TransferTicket other_way = submit(TransferDirection::kDeviceToHost, 3000, 1000);

  clock.Advance(absl::Microseconds(11) - absl::Nanoseconds(1));
  EXPECT_FALSE(transfers->IsDone(first));
  clock.Advance(absl::Nanoseconds(1));
  const Transfers::Times times = transfers->Finish(first);
  EXPECT_EQ(times.took, absl::Microseconds(11));
  EXPECT_EQ(times.waited, absl::ZeroDuration());
  // The directions do not share the bandwidth.
  EXPECT_EQ(transfers->Finish(other_way).took, absl::Microseconds(11));

  clock.Advance(absl::Microseconds(2) - absl::Nanoseconds(1));
  EXPECT_FALSE(transfers->IsDone(second)) << "it went after the first";
  clock.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(transfers->Finish(second).took, absl::Microseconds(12));

  // A link that was idle starts at once.
  clock.Advance(absl::Seconds(1));
  const TransferTicket third = submit(TransferDirection::kHostToDevice, 0, 1000);
  clock.Advance(absl::Microseconds(11));
  EXPECT_EQ(transfers->Finish(third).waited, absl::ZeroDuration());
}

TEST(TransferWorkersTest, FinishWaitsForTheModelledLinkAbandonDoesNot) {
  const auto transfers = Workers({.link_latency_us = 30'000});
  const std::vector<std::byte> from(8, std::byte{1});
  std::vector<std::byte> to(8);
  const absl::Time start = absl::Now();
  const TransferTicket abandoned =
      transfers->Submit(TransferDirection::kHostToDevice, {Copy(from, &to, 0, 4)});
  transfers->Abandon(abandoned);
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(29));
  EXPECT_EQ(to[0], std::byte{1});
  const TransferTicket finished =
      transfers->Submit(TransferDirection::kHostToDevice, {Copy(from, &to, 4, 4)});
  EXPECT_GE(transfers->Finish(finished).waited, absl::Milliseconds(25));
}

TEST(TransferWorkersTest, ALayerWaitsForItsOwnTransferOnly) {
  std::promise<void> may_go;
  std::atomic<int> num_started = 0;
  const auto transfers = Workers({.num_workers = 2, .before_copy = [&](TransferDirection) {
                                    if (num_started.fetch_add(1) == 0) may_go.get_future().wait();
                                  }});
  const std::vector<std::byte> from(8, std::byte{1});
  std::vector<std::byte> to(8);
  const TransferTicket blocked =
      transfers->Submit(TransferDirection::kHostToDevice, {Copy(from, &to, 0, 4)});
  while (num_started.load() == 0) absl::SleepFor(absl::Microseconds(100));
  const TransferTicket free =
      transfers->Submit(TransferDirection::kHostToDevice, {Copy(from, &to, 4, 4)});
  transfers->Finish(free);
  EXPECT_FALSE(transfers->IsDone(blocked));
  may_go.set_value();
  transfers->Finish(blocked);
}

TEST(TransferWorkersTest, AFullQueueMakesSubmitWaitAndLosesNothing) {
  const auto transfers = Workers({.num_workers = 1, .max_queued = 1});
  const std::vector<std::byte> from(1000, std::byte{9});
  std::vector<std::byte> to(1000);
  std::vector<TransferTicket> tickets;
  for (size_t i = 0; i < 1000; ++i) {
    tickets.push_back(transfers->Submit(TransferDirection::kHostToDevice, {Copy(from, &to, i, 1)}));
  }
  for (const TransferTicket ticket : tickets) transfers->Finish(ticket);
  EXPECT_EQ(to, from);
}

TEST(TransferWorkersTest, DiesCleanlyWithWorkInFlight) {
  const std::vector<std::byte> from(1000, std::byte{9});
  std::vector<std::byte> to(1000);
  {
    const auto transfers = Workers({.num_workers = 2, .before_copy = [](TransferDirection) {
                                      absl::SleepFor(absl::Microseconds(200));
                                    }});
    for (size_t i = 0; i < 100; ++i) {
      transfers->Submit(TransferDirection::kHostToDevice, {Copy(from, &to, i * 10, 10)});
    }
  }
  EXPECT_EQ(to, from) << "what was submitted has been moved";
}

TEST(TransferWorkersTest, RefusesOptionsThatCannotWorkNamingFieldAndBound) {
  const auto message = [](const TransferOptions& options) {
    const auto workers = NewTransferWorkers(options);
    EXPECT_EQ(workers.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(workers.status().message());
  };
  EXPECT_THAT(message({.num_workers = 0}), HasSubstr("num_workers is 0, must be in [1, 64]"));
  EXPECT_THAT(message({.max_queued = 0}), HasSubstr("max_queued is 0"));
  EXPECT_THAT(message({.link_gbps = -1}), HasSubstr("link_gbps is -1"));
  EXPECT_THAT(message({.link_gbps = std::numeric_limits<double>::infinity()}),
              HasSubstr("link_gbps is inf"));
  EXPECT_THAT(message({.link_latency_us = -0.5}), HasSubstr("link_latency_us is -0.5"));
}

}  // namespace
}  // namespace tokenbutler
