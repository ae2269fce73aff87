// tokenbutler-bench: how fast the kernels and the model are on this machine.

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "base/cpu_features.h"
#include "bench/benchmarks.h"
#include "bench/sparse_commands.h"
#include "engine/kernels/kernel_target.h"
#include "tools/scoring/measurement.h"

namespace tokenbutler {
namespace {

void AddBandwidth(CLI::App& app, Measurement* chosen) {
  CLI::App* command =
      app.add_subcommand("bandwidth", "Speed of reading memory that is in no cache");
  auto options = std::make_shared<BandwidthOptions>();
  command->add_option("--repeats", options->repeats, "Passes over the memory")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->callback(
      [=] { *chosen = [=](ComputePool& pool) { return RunBandwidth(*options, pool); }; });
}

void AddLinear(CLI::App& app, Measurement* chosen) {
  CLI::App* command =
      app.add_subcommand("linear", "Linear layers at decode, weights cold (default: SmolLM2-135M)");
  auto options = std::make_shared<LinearOptions>();
  const auto size = [&](const char* flag, int* value, const char* help) {
    command->add_option(flag, *value, help)->capture_default_str()->check(CLI::PositiveNumber);
  };
  size("--hidden-size", &options->hidden_size, "Width of the residual stream");
  size("--intermediate-size", &options->intermediate_size, "Width of the MLP");
  size("--qkv-size", &options->qkv_size, "(num_heads + 2 num_kv_heads) * head_dim");
  size("--vocab-size", &options->vocab_size, "Rows of the output head");
  size("--repeats", &options->repeats, "Passes over the memory");
  command->add_option("--rows", options->rows, "Rows of x: sequences decoded together")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->callback(
      [=] { *chosen = [=](ComputePool& pool) { return RunLinear(*options, pool); }; });
}

void AddAttention(CLI::App& app, Measurement* chosen) {
  CLI::App* command = app.add_subcommand(
      "attention", "Dense decode attention of one layer, KV cache cold (default: SmolLM2-135M)");
  auto options = std::make_shared<DenseAttentionOptions>();
  const auto size = [&](const char* flag, int* value, const char* help) {
    command->add_option(flag, *value, help)->capture_default_str()->check(CLI::PositiveNumber);
  };
  size("--num-heads", &options->num_heads, "Query heads");
  size("--num-kv-heads", &options->num_kv_heads, "KV heads; divides the query heads");
  size("--head-dim", &options->head_dim, "Size of one head");
  size("--repeats", &options->repeats, "Passes over the memory");
  command->add_option("--depths", options->depths, "Context lengths in tokens")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--batches", options->batches, "Sequences decoded together")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->callback(
      [=] { *chosen = [=](ComputePool& pool) { return RunAttention(*options, pool); }; });
}

void AddGather(CLI::App& app, Measurement* chosen) {
  CLI::App* command = app.add_subcommand(
      "gather",
      "Attention over chosen tokens and the floor of reading them (default: SmolLM2-135M)");
  auto options = std::make_shared<GatherOptions>();
  const auto size = [&](const char* flag, auto* value, const char* help) {
    command->add_option(flag, *value, help)->capture_default_str()->check(CLI::PositiveNumber);
  };
  size("--num-heads", &options->num_heads, "Query heads");
  size("--num-kv-heads", &options->num_kv_heads, "KV heads; divides the query heads");
  size("--head-dim", &options->head_dim, "Size of one head, a multiple of 32");
  size("--num-layers", &options->num_layers, "Layers of the cache, which bounds its memory");
  size("--depths", &options->depths, "Context lengths in tokens");
  size("--budgets", &options->budgets, "Tokens attended to per KV head");
  size("--run-length", &options->run_length, "Consecutive tokens per choice");
  size("--repeats", &options->repeats, "Passes over the layers; medians are reported");
  command->callback(
      [=] { *chosen = [=](ComputePool& pool) { return RunGather(*options, pool); }; });
}

void AddPool(CLI::App& app, Measurement* chosen) {
  CLI::App* command = app.add_subcommand(
      "pool", "A step's short parallel sections with workers that sleep or spin between them");
  auto options = std::make_shared<PoolOptions>();
  command->add_option("--repeats", options->repeats, "Steps of each kind, taking turns")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->callback([=] { *chosen = [=](ComputePool& pool) { return RunPool(*options, pool); }; });
}

void AddScan(CLI::App& app, Measurement* chosen) {
  CLI::App* command = app.add_subcommand(
      "scan", "A decode step's scans of low-bit and of projected keys over all layers, all cold");
  auto options = std::make_shared<ScanOptions>();
  command->add_option("--depth", options->depth, "Context length in tokens; a multiple of 128")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--k", options->k, "Tokens chosen per KV head")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--bits", options->bits, "Bits of a code")
      ->capture_default_str()
      ->check(CLI::IsMember({1, 2, 4}));
  command
      ->add_option("--projected-dims", options->projected_dims,
                   "Dimensions of projected int8 keys; multiples of 4")
      ->capture_default_str()
      ->check(CLI::IsMember({4, 8, 12, 16, 20, 24, 28, 32, 48, 64, 96, 128}));
  command->add_option("--groups", options->group_sizes, "Query heads per KV head; 7: Qwen's shape")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command
      ->add_option("--block-fractions", options->block_fractions,
                   "Shares of blocks whose tokens are scored, ranked by their scales")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 1.0));
  command->add_option("--repeats", options->repeats, "Steps measured; medians are reported")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->callback([=] { *chosen = [=](ComputePool& pool) { return RunScan(*options, pool); }; });
}

void AddModel(CLI::App& app, Measurement* chosen) {
  CLI::App* command = app.add_subcommand(
      "model", "Prefill and decode of a model, beside the time to read its weights once");
  auto options = std::make_shared<ModelOptions>();
  command->add_option("model", options->model, "A .gguf file or a Hugging Face folder")->required();
  command->add_option("--dtype", options->dtype, "Compute dtype; default: the server's choice")
      ->check(CLI::IsMember({"bfloat16", "float32"}));
  command->add_option("--depths", options->depths, "Cached tokens at which decoding is measured")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  const auto size = [&](const char* flag, int* value, const char* help) {
    command->add_option(flag, *value, help)->capture_default_str()->check(CLI::PositiveNumber);
  };
  size("--prefill-tokens", &options->prefill_tokens, "Prompt length at depth 0");
  size("--prefill-chunk-tokens", &options->prefill_chunk_tokens, "Tokens per prefill step");
  size("--decode-tokens", &options->decode_tokens, "Tokens decoded per depth and repeat");
  size("--repeats", &options->repeats, "Times everything is measured; medians are reported");
  command->callback([=] { *chosen = [=](ComputePool& pool) { return RunModel(*options, pool); }; });
}

int Main(int argc, char** argv) {
  CLI::App app("Measures TokenButler's kernels and models on this machine.", "tokenbutler-bench");
  MeasurementFlags flags;
  AddMeasurementFlags(app, &flags);
  std::string target;
  app.add_option("--target", target, "Highest instruction set to use")
      ->check(CLI::IsMember({"portable", "avx2", "avx512", "avx512_bf16"}));
  Measurement benchmark;
  AddBandwidth(app, &benchmark);
  AddLinear(app, &benchmark);
  AddAttention(app, &benchmark);
  AddGather(app, &benchmark);
  AddPool(app, &benchmark);
  AddScan(app, &benchmark);
  AddModel(app, &benchmark);
  AddDecode(app, &benchmark);
  AddLink(app, &benchmark);
  CLI11_PARSE(app, argc, argv);

  for (const CpuTarget t : {CpuTarget::kPortable, CpuTarget::kAvx2, CpuTarget::kAvx512}) {
    if (target == CpuTargetName(t)) SetKernelTarget(t);
  }
  return Measure(benchmark, flags, "tokenbutler-bench");
}

}  // namespace
}  // namespace tokenbutler

int main(int argc, char** argv) { return tokenbutler::Main(argc, argv); }
