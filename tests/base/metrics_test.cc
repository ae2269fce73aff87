#include "base/metrics.h"

#include <map>
#include <set>
#include <string>

#include "base/process_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

std::string Page(const Metrics& metrics) {
  return prometheus::TextSerializer().Serialize(metrics.registry()->Collect());
}

TEST(MetricsTest, EverySeriesExistsFromTheStart) {
  const Metrics metrics({.version = "1.2", .torch = "2.11", .cuda = "none", .isa = "avx2"});
  const std::string page = Page(metrics);
  for (const char* series :
       {"requests_running 0",
        "requests_waiting 0",
        "requests_preparing 0",
        "open_streams 0",
        "requests_total{code=\"OK\"} 0",
        "requests_total{code=\"UNAUTHENTICATED\"} 0",
        "finished_total{reason=\"eos\"} 0",
        "finished_total{reason=\"cancelled\"} 0",
        "prompt_tokens_total 0",
        "prompt_tokens_cached_total 0",
        "generation_tokens_total 0",
        "time_to_first_token_seconds_count 0",
        "inter_token_latency_seconds_count 0",
        "e2e_request_latency_seconds_count 0",
        "request_queue_seconds_count 0",
        "request_prefill_seconds_count 0",
        "request_decode_seconds_count 0",
        "request_prepare_seconds_count 0",
        "slow_reader_aborts_total 0",
        "deadline_expired_total{stage=\"prepare\"} 0",
        "deadline_expired_total{stage=\"decode\"} 0",
        "kv_host_used_bytes 0",
        "kv_host_high_water_bytes 0",
        "kv_host_reserved_bytes 0",
        "kv_host_capacity_bytes 0",
        "kv_host_pinned_bytes 0",
        "kv_host_alloc_failures_total 0",
        "kv_device_used_bytes 0",
        "kv_transfer_bytes_total{direction=\"host_to_device\",purpose=\"fetch\"} 0",
        "kv_transfer_bytes_total{direction=\"device_to_host\",purpose=\"write_back\"} 0",
        "kv_transfer_seconds_count 0",
        "hot_buffer_lookups_total 0",
        "hot_buffer_hits_total 0",
        "prefetch_issued_total 0",
        "prefetch_late_total 0",
        "decode_stall_seconds_count 0",
        "predictor_seconds_count 0",
        "selected_tokens_count 0",
        "attended_ratio_count 0",
        "selection_recall_ratio_count 0",
        "dense_fallback_total{reason=\"short_context\"} 0",
        "dense_fallback_total{reason=\"dense_layer\"} 0",
        "dense_fallback_total{reason=\"window\"} 0"}) {
    EXPECT_THAT(page, HasSubstr(std::string("\ntokenbutler_") + series + "\n"));
  }
  EXPECT_THAT(page, HasSubstr("tokenbutler_build_info{cuda=\"none\",isa=\"avx2\",torch=\"2.11\","
                              "version=\"1.2\"} 1"));
}

TEST(MetricsTest, EachCodeHasItsOwnSeries) {
  Metrics metrics({.version = "1", .torch = "2", .cuda = "none", .isa = "avx2"});
  std::set<prometheus::Counter*> counters;
  for (int code = 0; code <= 16; ++code) {
    counters.insert(&metrics.requests_total(static_cast<absl::StatusCode>(code)));
  }
  EXPECT_EQ(counters.size(), 17);
  metrics.requests_total(absl::StatusCode::kDataLoss).Increment();
  EXPECT_THAT(Page(metrics), HasSubstr("tokenbutler_requests_total{code=\"DATA_LOSS\"} 1\n"));
}

TEST(MetricsTest, BucketsAreVllms) {
  Metrics metrics({.version = "1", .torch = "2", .cuda = "none", .isa = "avx2"});
  metrics.time_to_first_token_seconds.Observe(0.07);
  const std::string page = Page(metrics);
  EXPECT_THAT(page, HasSubstr("time_to_first_token_seconds_bucket{le=\"0.06\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("time_to_first_token_seconds_bucket{le=\"0.08\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("time_to_first_token_seconds_bucket{le=\"2560\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("inter_token_latency_seconds_bucket{le=\"0.0025\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("e2e_request_latency_seconds_bucket{le=\"7680\"} 0\n"));
}

TEST(ProcessMetricsTest, AreTrueOfThisProcess) {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : ProcessMetrics().Collect()) {
    const prometheus::ClientMetric& metric = family.metric.at(0);
    values[family.name] =
        family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
  }
  EXPECT_EQ(values.size(), 7);
  EXPECT_GE(values.at("process_cpu_seconds_total"), 0);
  EXPECT_GT(values.at("process_resident_memory_bytes"), 1e6);
  EXPECT_LT(values.at("process_resident_memory_bytes"), values.at("process_virtual_memory_bytes"));
  EXPECT_GE(values.at("process_threads"), 1);
  EXPECT_GE(values.at("process_open_fds"), 3);
  EXPECT_GE(values.at("process_max_fds"), values.at("process_open_fds"));
  EXPECT_GT(values.at("process_start_time_seconds"), 1.6e9);
}

}  // namespace
}  // namespace tokenbutler
