#pragma once

#include <string>
#include <vector>

#include "base/compute_pool.h"
#include "base/status.h"
#include "bench/link_model.h"
#include "tools/scoring/report.h"
#include "tools/scoring/settings.h"

namespace tokenbutler {

// Each Run* measures one thing, says on stderr how far it is, and returns the table.

struct BandwidthOptions {
  int repeats = 9;
};
absl::StatusOr<Report> RunBandwidth(const BandwidthOptions& options, ComputePool& pool);

// Our weight-streaming linear at the shapes of one model, weights cold.
struct LinearOptions {
  int hidden_size = 576;
  int intermediate_size = 1536;
  int qkv_size = 960;  // (num_heads + 2 * num_kv_heads) * head_dim
  int vocab_size = 49152;
  std::vector<int> rows = {1, 2, 4, 8, 16};
  int repeats = 5;
};
absl::StatusOr<Report> RunLinear(const LinearOptions& options, ComputePool& pool);

// Dense decode attention of one layer at several context lengths, keys and values cold.
struct DenseAttentionOptions {
  int num_heads = 9;
  int num_kv_heads = 3;
  int head_dim = 64;
  std::vector<int> depths = {1024, 4096, 8192, 65536, 262144};
  std::vector<int> batches = {1};
  int repeats = 5;
};
absl::StatusOr<Report> RunAttention(const DenseAttentionOptions& options, ComputePool& pool);

// Attention over chosen tokens of a deep context, beside the time of merely reading the same rows:
// random rows, each layer and KV head with a list of its own, rows cold.
struct GatherOptions {
  int num_heads = 9;
  int num_kv_heads = 3;
  int head_dim = 64;
  int num_layers = 16;  // of the cache; its memory is num_layers * depth tokens
  std::vector<int> depths = {262144};
  std::vector<int> budgets = {4096};  // rows per KV head
  int run_length = 1;                 // consecutive rows
  int repeats = 9;
};
absl::StatusOr<Report> RunGather(const GatherOptions& options, ComputePool& pool);

// A decode step's scans of low-bit keys over all layers, at the shapes of SmolLM2-135M (any group
// but 7) and Qwen2.5-0.5B (7); top-k of random keys; partial scans of any blocks: time only.
struct ScanOptions {
  int depth = 262144;  // tokens; a multiple of 128
  int k = 3456;        // tokens chosen per KV head
  std::vector<int> bits = {1, 2, 4};
  std::vector<int> projected_dims = {16, 32};  // of int8 keys
  std::vector<int> group_sizes = {3, 7};
  std::vector<double> block_fractions = {1, 0.5, 0.25};  // of blocks whose tokens are scored
  int repeats = 5;
};
absl::StatusOr<Report> RunScan(const ScanOptions& options, ComputePool& pool);

// The linear layers of a decode step of SmolLM2-135M, with workers that sleep between them and with
// workers that spin for a bounded time (ComputePool::StepScope).
struct PoolOptions {
  int repeats = 100;
};
absl::StatusOr<Report> RunPool(const PoolOptions& options, ComputePool& pool);

// Prefill and decode of one sequence of a real model, through the runner the server uses.
struct ModelOptions {
  std::string model;  // a .gguf file or a Hugging Face folder
  std::string dtype;  // "bfloat16", "float32", or empty: what the server would choose
  std::vector<int> depths = {0, 4096, 8192};
  int prefill_tokens = 512;  // prompt at depth 0, whose speed is measured there
  int prefill_chunk_tokens = 512;
  int decode_tokens = 32;
  int repeats = 3;
};
absl::StatusOr<Report> RunModel(const ModelOptions& options, ComputePool& pool);

// Whole decode steps of one sequence against the length of its context, which is filled at random
// (bench/random_kv.h), for each setting; every step cold.
struct DecodeOptions {
  std::string model;
  std::string dtype;
  std::string kv_dtype;  // of the KV cache, a DTypeName; "": the compute dtype
  SettingOptions choice = {.settings = AllSettings(), .token_budgets = {4096}};
  std::vector<int> depths = {4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288};
  // Instead of every setting at every budget and depth: what docs/performance.md shows
  // (decode_cases.h), with every policy at `policy_depths` only.
  bool page = false;
  std::vector<int> policy_depths = {32768, 262144};
  int repeats = 3;
  int steps = 8;  // in each repeat at least; rounded up to whole intervals
  // Then the repeats that are left are not made, nor the same setting's deeper rows.
  double max_seconds_per_case = 60;
};
absl::StatusOr<Report> RunDecode(const DecodeOptions& options, ComputePool& pool);

// Decodes real texts with a device tier of its own behind a modelled link: what has to travel, how
// often it was there already, and what that would mean for a model of another shape on a device
// with another speed (bench/link_model.h).
struct LinkOptions {
  std::string model;
  std::string dtype;
  std::string kv_dtype;  // of the KV cache, a DTypeName; "": the compute dtype
  // The first is what a server with a staged device tier does.
  SettingOptions choice = {
      .settings = {"sketch:query=lookahead,candidates=1.5x", "sketch:query=lookahead", "quality",
                   "quality:misses=deferred", "fast", "fast:misses=deferred", "sketch:interval=4",
                   "sketch:interval=16,candidates=1/8", "quest", "exact", "random"},
      .token_budgets = {768},
      .sink_tokens = 32,
      .local_window = 128};
  int selections_kept = 3;         // room in the device tier
  std::vector<std::string> texts;  // files
  int context_len = 12288;
  int max_texts = 3;
  int decoded_tokens = 96;  // the last of them; the first 16 fill the device tier and do not count
  int prefill_chunk_tokens = 512;
  std::string prefill_cache;
  LinkModel link;
};
absl::StatusOr<Report> RunLink(const LinkOptions& options, ComputePool& pool);

}  // namespace tokenbutler
