#include "base/metrics.h"

#include <map>
#include <string>

namespace tokenbutler {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;
using Labels = std::map<std::string, std::string>;
using Buckets = Histogram::BucketBoundaries;

// vLLM's boundaries, so that dashboards can be compared; finer ones below for inter-token latency.
Buckets TtftBuckets() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}
Buckets InterTokenBuckets() {
  return {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3,
          .4,   .5,    .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80};
}
Buckets RequestBuckets() {
  return {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
          30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}

// Parts of a decode step.
Buckets StepPartBuckets() {
  return {.00001, .00002, .00005, .0001, .0002, .0005, .001, .002,
          .005,   .01,    .02,    .05,   .1,    .2,    .5,   1};
}
Buckets TokenBuckets() {
  return {16,   32,   64,    128,   256,   512,    1024,   2048,
          4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288};
}
Buckets AttendedRatioBuckets() {
  return {.001, .002, .005, .01, .02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1};
}
Buckets RecallBuckets() {
  return {.1, .2, .3, .4, .5, .6, .7, .75, .8, .85, .9, .925, .95, .975, .99, 1};
}

std::string Prefixed(const char* name) { return std::string("tokenbutler_") + name; }

// Adding a series of a family that exists already joins it, so labelled series are added one by
// one.
Counter& AddCounter(Registry& registry, const char* name, const char* help,
                    const Labels& labels = {}) {
  return prometheus::BuildCounter().Name(Prefixed(name)).Help(help).Register(registry).Add(labels);
}
Gauge& AddGauge(Registry& registry, const char* name, const char* help, const Labels& labels = {}) {
  return prometheus::BuildGauge().Name(Prefixed(name)).Help(help).Register(registry).Add(labels);
}
Histogram& AddHistogram(Registry& registry, const char* name, const char* help,
                        const Buckets& buckets) {
  return prometheus::BuildHistogram()
      .Name(Prefixed(name))
      .Help(help)
      .Register(registry)
      .Add({}, buckets);
}

Counter& AddFinished(Registry& registry, const char* reason) {
  return AddCounter(registry, "finished_total", "Completions that ended, by finish reason.",
                    {{"reason", reason}});
}
Counter& AddDeadlineExpired(Registry& registry, const char* stage) {
  return AddCounter(registry, "deadline_expired_total",
                    "Requests whose deadline passed, by the stage it found them in.",
                    {{"stage", stage}});
}
Counter& AddTransferBytes(Registry& registry, const char* direction, const char* purpose) {
  return AddCounter(registry, "kv_transfer_bytes_total",
                    "KV bytes that crossed the link between host and device.",
                    {{"direction", direction}, {"purpose", purpose}});
}
Counter& AddDenseFallback(Registry& registry, const char* reason) {
  return AddCounter(registry, "dense_fallback_total",
                    "Layers of decode steps in which a sparse sequence attended to everything.",
                    {{"reason", reason}});
}

constexpr std::array<const char*, 17> kCodeNames = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
};

}  // namespace

Metrics::Metrics(const BuildLabels& build)
    : registry_(std::make_shared<Registry>(Registry::InsertBehavior::Merge)),
      requests_preparing(AddGauge(*registry_, "requests_preparing",
                                  "Requests being tokenised or waiting for it.")),
      open_streams(AddGauge(*registry_, "open_streams", "Generate calls that are open.")),
      slow_reader_aborts_total(AddCounter(*registry_, "slow_reader_aborts_total",
                                          "Streams ended because the client stopped reading.")),
      request_prepare_seconds(AddHistogram(
          *registry_, "request_prepare_seconds",
          "Time to apply the chat template and to tokenise, waiting included.", TtftBuckets())),
      requests_running(AddGauge(*registry_, "requests_running", "Requests in prefill or decode.")),
      requests_waiting(
          AddGauge(*registry_, "requests_waiting", "Accepted requests that wait in the queue.")),
      finished_total{.eos = AddFinished(*registry_, "eos"),
                     .stop_string = AddFinished(*registry_, "stop_string"),
                     .stop_token = AddFinished(*registry_, "stop_token"),
                     .length = AddFinished(*registry_, "length"),
                     .context_length = AddFinished(*registry_, "context_length"),
                     .cancelled = AddFinished(*registry_, "cancelled")},
      prompt_tokens_total(AddCounter(*registry_, "prompt_tokens_total",
                                     "Prompt tokens of requests whose prefill was completed.")),
      prompt_tokens_cached_total(AddCounter(*registry_, "prompt_tokens_cached_total",
                                            "Prompt tokens that were not computed anew.")),
      generation_tokens_total(
          AddCounter(*registry_, "generation_tokens_total", "Tokens that were sampled.")),
      time_to_first_token_seconds(AddHistogram(*registry_, "time_to_first_token_seconds",
                                               "From a request's arrival to its first token.",
                                               TtftBuckets())),
      inter_token_latency_seconds(AddHistogram(*registry_, "inter_token_latency_seconds",
                                               "Between two tokens of one completion.",
                                               InterTokenBuckets())),
      e2e_request_latency_seconds(AddHistogram(*registry_, "e2e_request_latency_seconds",
                                               "From a request's arrival to its end.",
                                               RequestBuckets())),
      request_queue_seconds(AddHistogram(*registry_, "request_queue_seconds",
                                         "From a request's arrival to its first prefill chunk.",
                                         RequestBuckets())),
      request_prefill_seconds(AddHistogram(*registry_, "request_prefill_seconds",
                                           "From a request's first prefill chunk to its first "
                                           "token.",
                                           RequestBuckets())),
      request_decode_seconds(AddHistogram(*registry_, "request_decode_seconds",
                                          "From a request's first token to its last.",
                                          RequestBuckets())),
      deadline_expired_total{.prepare = AddDeadlineExpired(*registry_, "prepare"),
                             .queue = AddDeadlineExpired(*registry_, "queue"),
                             .prefill = AddDeadlineExpired(*registry_, "prefill"),
                             .decode = AddDeadlineExpired(*registry_, "decode")},
      kv_host_used_bytes(
          AddGauge(*registry_, "kv_host_used_bytes", "KV cache in host memory that is in use.")),
      kv_host_high_water_bytes(
          AddGauge(*registry_, "kv_host_high_water_bytes",
                   "The most of the KV cache in host memory that was in use at a time.")),
      kv_host_reserved_bytes(AddGauge(
          *registry_, "kv_host_reserved_bytes",
          "KV cache in host memory that stands for what attention policies keep elsewhere.")),
      kv_host_capacity_bytes(
          AddGauge(*registry_, "kv_host_capacity_bytes", "KV cache in host memory, all of it.")),
      kv_host_pinned_bytes(
          AddGauge(*registry_, "kv_host_pinned_bytes", "KV cache in page-locked host memory.")),
      kv_host_alloc_failures_total(AddCounter(*registry_, "kv_host_alloc_failures_total",
                                              "Times a KV block was wanted and none was free.")),
      kv_device_used_bytes(
          AddGauge(*registry_, "kv_device_used_bytes", "KV cache in device memory in use.")),
      kv_transfer_bytes_total{
          .fetch = AddTransferBytes(*registry_, "host_to_device", "fetch"),
          .prefetch = AddTransferBytes(*registry_, "host_to_device", "prefetch"),
          .write_back = AddTransferBytes(*registry_, "device_to_host", "write_back")},
      kv_transfer_seconds(AddHistogram(*registry_, "kv_transfer_seconds",
                                       "Spent by the KV transfers of a sequence's decode step.",
                                       StepPartBuckets())),
      hot_buffer_lookups_total(AddCounter(*registry_, "hot_buffer_lookups_total",
                                          "Selected tokens looked up in the device tier.")),
      hot_buffer_hits_total(AddCounter(*registry_, "hot_buffer_hits_total",
                                       "Selected tokens that were in the device tier.")),
      prefetch_issued_total(AddCounter(*registry_, "prefetch_issued_total",
                                       "Layers whose selection was fetched ahead.")),
      prefetch_late_total(AddCounter(*registry_, "prefetch_late_total",
                                     "Layers that had to wait for what was fetched ahead.")),
      decode_stall_seconds(AddHistogram(*registry_, "decode_stall_seconds",
                                        "A sequence's decode step waited for KV transfers.",
                                        StepPartBuckets())),
      predictor_seconds(AddHistogram(*registry_, "predictor_seconds",
                                     "A sequence's decode step spent on choosing tokens.",
                                     StepPartBuckets())),
      selected_tokens(AddHistogram(*registry_, "selected_tokens",
                                   "Tokens attended per layer and KV head in a sequence's decode "
                                   "step, mean.",
                                   TokenBuckets())),
      attended_ratio(AddHistogram(*registry_, "attended_ratio",
                                  "The share of the context attended in a sequence's decode step.",
                                  AttendedRatioBuckets())),
      selection_recall_ratio(AddHistogram(*registry_, "selection_recall_ratio",
                                          "At probes: the share of the attention mass selected.",
                                          RecallBuckets())),
      dense_fallback_total{.short_context = AddDenseFallback(*registry_, "short_context"),
                           .dense_layer = AddDenseFallback(*registry_, "dense_layer"),
                           .window = AddDenseFallback(*registry_, "window")} {
  for (size_t code = 0; code < kCodeNames.size(); ++code) {
    requests_total_[code] =
        &AddCounter(*registry_, "requests_total", "Generate calls that ended, by gRPC status code.",
                    {{"code", kCodeNames[code]}});
  }
  AddGauge(*registry_, "build_info", "Always 1; the labels say what runs.",
           {{"version", build.version},
            {"torch", build.torch},
            {"cuda", build.cuda},
            {"isa", build.isa}})
      .Set(1);
}

}  // namespace tokenbutler
