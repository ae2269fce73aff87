#include "server/server_config.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<CommandLine> Parse(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "tokenbutler-server");
  return ParseCommandLine(static_cast<int>(flags.size()), flags.data());
}

std::string Error(std::vector<const char*> flags) {
  const auto parsed = Parse(std::move(flags));
  return parsed.ok() ? "no error" : std::string(parsed.status().message());
}

TEST(ServerConfigTest, DefaultsAreWhatTheDocumentationSays) {
  const auto parsed = Parse({"--model", "m.gguf"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const ServerConfig& config = *parsed->config;
  EXPECT_EQ(config.model_path, "m.gguf");
  EXPECT_EQ(config.grpc.host, "127.0.0.1");
  EXPECT_EQ(config.grpc.port, 50051);
  EXPECT_EQ(config.grpc.max_receive_bytes, 64 << 20);
  EXPECT_TRUE(config.grpc.reflection);
  EXPECT_EQ(config.metrics_port, 9464);
  EXPECT_FALSE(config.compute_dtype);
  EXPECT_FALSE(config.kv_cache_dtype);
  EXPECT_FALSE(config.kv_capacity_bytes);
  EXPECT_EQ(config.slow_reader_timeout, absl::Seconds(30));
  EXPECT_EQ(config.shutdown_grace, absl::Seconds(30));
  EXPECT_EQ(config.stream_buffer_bytes, 16 << 20);
  EXPECT_EQ(config.engine.max_queue_time, EngineConfig().max_queue_time);
  EXPECT_EQ(config.engine.priority_step, EngineConfig().priority_step);
  EXPECT_EQ(config.engine.max_num_seqs, EngineConfig().max_num_seqs);
  EXPECT_EQ(config.attention.policy, AttentionPolicy::kSketch);
  EXPECT_EQ(config.attention.token_budget, 4096);
  EXPECT_EQ(config.attention.sink_tokens, 128);
  EXPECT_EQ(config.attention.local_window, 512);
  EXPECT_FALSE(config.attention_flags.any());
  EXPECT_FALSE(config.staged);
  EXPECT_EQ(config.recall_probe_rate, 0.01);
}

TEST(ServerConfigTest, AttentionFlagsReachTheirFields) {
  const auto parsed = Parse({"--model",
                             "m",
                             "--policy",
                             "tokenbutler",
                             "--token-budget",
                             "1000",
                             "--sink-tokens",
                             "10",
                             "--local-window",
                             "20",
                             "--prediction-interval",
                             "4",
                             "--candidates",
                             "3000",
                             "--neighbours",
                             "1",
                             "--attention-top-p",
                             "0.5",
                             "--query",
                             "lookahead",
                             "--keys",
                             "bits4",
                             "--scan-fraction",
                             "0.125",
                             "--dense-first-layer",
                             "true",
                             "--misses",
                             "deferred",
                             "--recall-probe-rate",
                             "0.5",
                             "--offload",
                             "staged",
                             "--device-kv-capacity",
                             "2MiB",
                             "--selections-kept",
                             "5",
                             "--link-gbps",
                             "25",
                             "--link-latency-us",
                             "10"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const AttentionParams& attention = parsed->config->attention;
  EXPECT_EQ(attention.policy, AttentionPolicy::kTokenButler);
  EXPECT_EQ(attention.token_budget, 1000);
  EXPECT_EQ(attention.sink_tokens, 10);
  EXPECT_EQ(attention.local_window, 20);
  EXPECT_EQ(attention.prediction_interval, 4);
  EXPECT_EQ(attention.candidates, 3000);
  EXPECT_EQ(attention.neighbours, 1);
  EXPECT_EQ(attention.top_p, 0.5f);
  EXPECT_EQ(attention.query, QuerySource::kLookahead);
  EXPECT_EQ(attention.keys, KeyFormat::kBits4);
  EXPECT_EQ(attention.scan_fraction, 0.125f);
  EXPECT_TRUE(attention.dense_first_layer);
  EXPECT_EQ(attention.misses, MissRule::kDeferred);
  EXPECT_EQ(parsed->config->recall_probe_rate, 0.5);
  ASSERT_TRUE(parsed->config->staged);
  EXPECT_EQ(parsed->config->staged->device_capacity_bytes, 2 << 20);
  EXPECT_EQ(parsed->config->staged->link_gbps, 25);
  EXPECT_EQ(parsed->config->staged->link_latency_us, 10);
  EXPECT_EQ(parsed->config->effective.at("--policy"), "tokenbutler");

  EXPECT_EQ(parsed->config->staged->selections_kept, 5);

  const auto staged = Parse({"--model", "m", "--offload", "staged", "--token-budget", "2000"});
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(staged->config->attention.policy, AttentionPolicy::kSketch);
  EXPECT_EQ(staged->config->attention.query, QuerySource::kLookahead);
  EXPECT_EQ(staged->config->attention.candidates, 3000);
  EXPECT_EQ(staged->config->staged->selections_kept, 3);
  EXPECT_EQ(staged->config->staged->device_capacity_bytes, int64_t{4} << 30);
  const auto direct = Parse({"--model", "m"});
  EXPECT_FALSE(direct->config->attention.query);
  EXPECT_EQ(direct->config->attention.candidates, 0);

  const auto fast = Parse({"--model", "m", "--attention-setting", "fast"});
  ASSERT_TRUE(fast.ok()) << fast.status();
  EXPECT_EQ(fast->config->attention.keys, WithSetting(AttentionSetting::kFast, {}).keys);
  EXPECT_LT(fast->config->attention.scan_fraction, 1);
  const auto streaming = Parse({"--model", "m", "--policy", "streaming_llm"});
  EXPECT_EQ(streaming->config->attention.sink_tokens, 4);
}

TEST(ServerConfigTest, BadAttentionFlagsAreNamed) {
  EXPECT_THAT(Error({"--model", "m", "--policy", "oracle"}),
              AllOf(HasSubstr("--policy"), HasSubstr("oracle"), HasSubstr("streaming_llm")));
  EXPECT_THAT(Error({"--model", "m", "--token-budget", "600"}),
              AllOf(HasSubstr("attention.token_budget is 600"), HasSubstr("128 + 512")));
  EXPECT_THAT(Error({"--model", "m", "--policy", "quest", "--keys", "bits1"}),
              AllOf(HasSubstr("attention.keys"), HasSubstr("quest"), HasSubstr("sketch")));
  EXPECT_THAT(Error({"--model", "m", "--policy", "dense", "--token-budget", "4096"}),
              AllOf(HasSubstr("attention.token_budget"), HasSubstr("dense")));
  EXPECT_THAT(Error({"--model", "m", "--prediction-interval", "often"}),
              AllOf(HasSubstr("--prediction-interval"), HasSubstr("often")));
  EXPECT_THAT(Error({"--model", "m", "--offload", "gpu"}),
              AllOf(HasSubstr("--offload"), HasSubstr("gpu"), HasSubstr("direct or staged")));
  EXPECT_THAT(Error({"--model", "m", "--link-gbps", "25"}),
              AllOf(HasSubstr("--link-gbps"), HasSubstr("--offload staged")));
  EXPECT_THAT(Error({"--model", "m", "--selections-kept", "2"}),
              AllOf(HasSubstr("--selections-kept"), HasSubstr("--offload staged")));
  EXPECT_THAT(Error({"--model", "m", "--offload", "staged", "--selections-kept", "0"}),
              HasSubstr("--selections-kept"));
  EXPECT_THAT(Error({"--model", "m", "--offload", "staged", "--link-gbps", "-1"}),
              AllOf(HasSubstr("--link-gbps"), HasSubstr("-1")));
  for (const char* flag : {"--link-gbps", "--link-latency-us", "--recall-probe-rate"}) {
    for (const char* value : {"nan", "-nan", "inf", "1e300", "1x", ""}) {
      EXPECT_THAT(Error({"--model", "m", "--offload", "staged", flag, value}), HasSubstr(flag))
          << value;
    }
  }
  EXPECT_THAT(Error({"--model", "m", "--recall-probe-rate", "2"}),
              AllOf(HasSubstr("--recall-probe-rate"), HasSubstr("2")));
}

TEST(ServerConfigTest, EveryFlagReachesItsField) {
  const auto parsed = Parse({"--model",
                             "m",
                             "--served-model-name",
                             "my-model",
                             "--host",
                             "0.0.0.0",
                             "--port",
                             "0",
                             "--metrics-port",
                             "1234",
                             "--port-file",
                             "p",
                             "--metrics-port-file",
                             "q",
                             "--max-receive-mb",
                             "8",
                             "--reflection=false",
                             "--slow-reader-timeout",
                             "2s",
                             "--stream-buffer",
                             "1MiB",
                             "--predictor-dir",
                             "d",
                             "--predictor-kind",
                             "tokenbutler",
                             "--shutdown-grace",
                             "500ms",
                             "--max-model-len",
                             "4096",
                             "--rope-scaling",
                             R"({"rope_type": "yarn", "factor": 4.0})",
                             "--dtype",
                             "float32",
                             "--kv-capacity",
                             "1.5GiB",
                             "--block-size",
                             "64",
                             "--kv-cache-dtype",
                             "int8",
                             "--kv-prefault",
                             "--max-num-seqs",
                             "3",
                             "--prefill-chunk-tokens",
                             "100",
                             "--max-waiting-requests",
                             "5",
                             "--max-waiting-tokens",
                             "6000",
                             "--max-queue-time",
                             "1m",
                             "--priority-step",
                             "5s",
                             "--max-overtakes",
                             "7",
                             "--threads",
                             "2",
                             "--tokenizer-threads",
                             "4",
                             "--max-preparing",
                             "9",
                             "--log-format",
                             "json",
                             "--log-level",
                             "debug"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const ServerConfig& config = *parsed->config;
  EXPECT_EQ(config.served_model_name, "my-model");
  EXPECT_EQ(config.grpc.host, "0.0.0.0");
  EXPECT_EQ(config.grpc.port, 0);
  EXPECT_EQ(config.metrics_port, 1234);
  EXPECT_EQ(config.port_file, "p");
  EXPECT_EQ(config.metrics_port_file, "q");
  EXPECT_EQ(config.grpc.max_receive_bytes, 8 << 20);
  EXPECT_FALSE(config.grpc.reflection);
  EXPECT_EQ(config.slow_reader_timeout, absl::Seconds(2));
  EXPECT_EQ(config.stream_buffer_bytes, 1 << 20);
  EXPECT_EQ(config.shutdown_grace, absl::Milliseconds(500));
  EXPECT_EQ(config.overrides.max_model_len, 4096);
  EXPECT_EQ(config.overrides.rope_scaling, R"({"rope_type": "yarn", "factor": 4.0})");
  EXPECT_EQ(config.compute_dtype, DType::kF32);
  EXPECT_EQ(config.kv_capacity_bytes, int64_t{3} << 29);
  EXPECT_EQ(config.block_size, 64);
  EXPECT_EQ(config.kv_cache_dtype, DType::kI8);
  EXPECT_TRUE(config.kv_prefault);
  EXPECT_EQ(config.engine.max_num_seqs, 3);
  EXPECT_EQ(config.engine.prefill_chunk_tokens, 100);
  EXPECT_EQ(config.engine.max_waiting_requests, 5);
  EXPECT_EQ(config.engine.max_waiting_tokens, 6000);
  EXPECT_EQ(config.engine.max_queue_time, absl::Minutes(1));
  EXPECT_EQ(config.engine.priority_step, absl::Seconds(5));
  EXPECT_EQ(config.engine.max_overtakes, 7);
  EXPECT_EQ(config.num_threads, 2);
  EXPECT_EQ(config.preparer.num_threads, 4);
  EXPECT_EQ(config.preparer.max_queued, 9);
  EXPECT_EQ(config.log_format, LogFormat::kJson);
  EXPECT_EQ(config.log_level, LogLevel::kDebug);
  EXPECT_EQ(config.effective.at("--kv-capacity"), "1.5GiB");
  EXPECT_EQ(config.effective.at("--reflection"), "false");
  EXPECT_EQ(config.effective.size(), 56);
  EXPECT_EQ(config.predictor_files.folder, "d");
  EXPECT_EQ(config.predictor_files.kind, PredictorKind::kTokenButler);
}

TEST(ServerConfigTest, WhatCannotWorkIsRefusedBeforeTheModelIsLoaded) {
  EXPECT_THAT(Error({"--model", "m", "--slow-reader-timeout", "0s"}), HasSubstr("100ms at least"));
  EXPECT_THAT(Error({"--model", "m", "--predictor-kind", "pca"}),
              HasSubstr("--predictor-kind: 'pca' must be any, lookahead or tokenbutler"));
  EXPECT_THAT(Error({"--model", "m", "--stream-buffer", "1"}), HasSubstr("65536 bytes at least"));
  EXPECT_THAT(Error({"--model", "m", "--max-waiting-requests", "0"}),
              HasSubstr("--max-waiting-requests: Value 0"));
  EXPECT_THAT(Error({"--model", "m", "--max-waiting-tokens", "0"}),
              HasSubstr("--max-waiting-tokens: Value 0"));
  EXPECT_THAT(Error({"--model", "m", "--max-queue-time", "0s"}), HasSubstr("must be more than 0s"));
}

TEST(ServerConfigTest, KvCacheDTypesHaveTheirShortAndTheirLongNames) {
  const std::pair<const char*, std::optional<DType>> names[] = {
      {"auto", std::nullopt},   {"bf16", DType::kBF16},   {"bfloat16", DType::kBF16},
      {"fp16", DType::kF16},    {"float16", DType::kF16}, {"fp32", DType::kF32},
      {"float32", DType::kF32}, {"int8", DType::kI8}};
  for (const auto& [name, dtype] : names) {
    const auto parsed = Parse({"--model", "m", "--kv-cache-dtype", name});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->config->kv_cache_dtype, dtype) << name;
  }
}

TEST(ServerConfigTest, HelpNamesEveryFlag) {
  const auto help = Parse({"--help"});
  ASSERT_TRUE(help.ok());
  EXPECT_FALSE(help->config);
  const auto parsed = Parse({"--model", "m"});
  ASSERT_TRUE(parsed.ok());
  for (const auto& [flag, value] : parsed->config->effective) {
    EXPECT_THAT(help->text, HasSubstr(flag));
  }
  EXPECT_THAT(Parse({"--version"})->text, HasSubstr("tokenbutler-server 0."));
}

TEST(ServerConfigTest, ErrorsNameFlagValueAndBound) {
  EXPECT_THAT(Error({}), HasSubstr("--model"));
  EXPECT_THAT(Error({"--model", "m", "--port", "70000"}),
              AllOf(HasSubstr("--port"), HasSubstr("70000"), HasSubstr("65535")));
  EXPECT_THAT(Error({"--model", "m", "--port", "many"}),
              AllOf(HasSubstr("--port"), HasSubstr("many")));
  EXPECT_THAT(Error({"--model", "m", "--dtype", "fp8"}),
              AllOf(HasSubstr("--dtype"), HasSubstr("fp8"), HasSubstr("bf16")));
  EXPECT_THAT(Error({"--model", "m", "--kv-cache-dtype", "fp8"}),
              AllOf(HasSubstr("--kv-cache-dtype"), HasSubstr("'fp8' must be auto, bf16, fp16, "
                                                             "fp32 or int8")));
  EXPECT_THAT(Error({"--model", "m", "--kv-capacity", "lots"}),
              AllOf(HasSubstr("--kv-capacity"), HasSubstr("lots"), HasSubstr("MiB")));
  EXPECT_THAT(Error({"--model", "m", "--shutdown-grace", "-1s"}),
              AllOf(HasSubstr("--shutdown-grace"), HasSubstr("-1s"), HasSubstr("24h")));
  EXPECT_THAT(Error({"--model", "m", "--log-format", "xml"}),
              AllOf(HasSubstr("--log-format"), HasSubstr("xml"), HasSubstr("json")));
  EXPECT_THAT(Error({"--model", "m", "--max-num-seqs", "0"}),
              AllOf(HasSubstr("--max-num-seqs"), HasSubstr("0")));
  EXPECT_THAT(Error({"--model", "m", "--no-such-flag"}), HasSubstr("--no-such-flag"));
}

TEST(ParseBytesTest, UnitsAndFaults) {
  EXPECT_EQ(*ParseBytes("4096"), 4096);
  EXPECT_EQ(*ParseBytes("512MiB"), int64_t{512} << 20);
  EXPECT_EQ(*ParseBytes("2GB"), 2'000'000'000);
  EXPECT_EQ(*ParseBytes("1.5 GiB"), int64_t{3} << 29);
  for (const char* bad : {"", "MiB", "-1", "0", "1XB", "nan", "inf", "1e30", "99999TiB0"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace tokenbutler
