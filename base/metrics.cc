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
      kv_host_capacity_bytes(
          AddGauge(*registry_, "kv_host_capacity_bytes", "KV cache in host memory, all of it.")),
      kv_host_pinned_bytes(
          AddGauge(*registry_, "kv_host_pinned_bytes", "KV cache in page-locked host memory.")),
      kv_host_alloc_failures_total(AddCounter(*registry_, "kv_host_alloc_failures_total",
                                              "Times a KV block was wanted and none was free.")) {
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
