#include "bench/sparse_commands.h"

#include <memory>
#include <string>

#include "engine/selection/attention_options.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

std::string SettingsHelp() {
  std::string help = "What to compare: NAME[:OPTION=VALUE,...]. Names: the policies, and";
  for (const AttentionSetting setting : kAttentionSettings) {
    help += fmt::format(" {}", AttentionSettingName(setting));
  }
  return help +
         ". Options: interval, candidates (tokens, budgets: 2x, or a share of the context: 1/8), "
         "scan (share "
         "of the blocks that a scan reads: 1/4), query, keys, neighbours, top_p, "
         "dense_first_layer, misses, sink, local";
}

void AddChoice(CLI::App* command, SettingOptions* choice) {
  command->add_option("--settings,--policies", choice->settings, SettingsHelp())
      ->capture_default_str();
  command
      ->add_option("--intervals", choice->sweep.intervals,
                   "Repeat each scanning policy with these prediction intervals")
      ->capture_default_str();
  command->add_option("--candidates", choice->sweep.candidates,
                      "The same with these numbers, or shares (1/8) of the context");
  command->add_option("--scan-fractions", choice->sweep.scan_fractions,
                      "The same with these shares of the blocks");
  command->add_option("--budgets", choice->token_budgets, "Tokens attended to per KV head")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--sink-tokens", choice->sink_tokens, "First tokens, always attended")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--local-window", choice->local_window, "Last tokens, always attended")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--predictor", choice->predictor, "Predictor file of the policy tokenbutler")
      ->check(CLI::ExistingFile);
  command->add_option("--resume", choice->resume,
                      "File of rows: those of an interrupted run are not measured again. Remove it "
                      "when the code has changed");
}

template <typename Options>
void AddModelOptions(CLI::App* command, Options* options) {
  command->add_option("model", options->model, "A .gguf file or a Hugging Face folder")->required();
  command->add_option("--dtype", options->dtype, "Compute dtype; default: the server's choice")
      ->check(CLI::IsMember({"bfloat16", "float32"}));
  command
      ->add_option("--kv-dtype", options->kv_dtype, "Of the KV cache; default: the compute dtype")
      ->check(CLI::IsMember({"bfloat16", "float16", "float32", "int8"}));
}

void AddCount(CLI::App* command, const char* flag, int* value, const char* help) {
  command->add_option(flag, *value, help)->capture_default_str()->check(CLI::PositiveNumber);
}

}  // namespace

void AddDecode(CLI::App& app, Benchmark* chosen) {
  CLI::App* command = app.add_subcommand(
      "decode", "Time per token against the context for each policy, beside dense and the floor");
  auto options = std::make_shared<DecodeOptions>();
  AddModelOptions(command, options.get());
  AddChoice(command, &options->choice);
  command
      ->add_option("--depths", options->depths,
                   "Cached tokens, filled at random; those without memory are left out")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_flag(
      "--page", options->page,
      "The rows of docs/performance.md instead of --settings: dense, quality and fast "
      "at --depths; every policy at --policy-depths; intervals, budgets and "
      "candidates at the last of these");
  command->add_option("--policy-depths", options->policy_depths, "For --page")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_flag_callback(
      "--quick",
      [=] {
        options->repeats = 1;
        options->steps = 2;
      },
      "One repeat of two steps: to see whether it works, not how fast it is");
  AddCount(command, "--repeats", &options->repeats, "Times each row is measured");
  AddCount(command, "--steps", &options->steps, "Steps of a repeat, rounded up to intervals");
  command
      ->add_option("--max-seconds-per-case", options->max_seconds_per_case,
                   "A row that takes longer gets fewer repeats, deeper ones of its setting none")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->callback(
      [=] { *chosen = [=](ComputePool& pool) { return RunDecode(*options, pool); }; });
}

void AddQuality(CLI::App& app, Benchmark* chosen) {
  CLI::App* command = app.add_subcommand(
      "quality", "Divergence of sparse from dense decoding on real texts, for each policy");
  auto options = std::make_shared<QualityOptions>();
  AddModelOptions(command, options.get());
  AddChoice(command, &options->choice);
  command->add_option("--text", options->texts, "Text files (quality_corpus.py collects some)")
      ->required()
      ->check(CLI::ExistingFile);
  AddCount(command, "--context", &options->context_len, "Tokens taken of each text");
  AddCount(command, "--slow-texts", &options->slow_texts,
           "How many of the texts h2o, snapkv and xkv get, which take minutes for each");
  AddCount(command, "--scored-tokens", &options->scored_tokens, "The last of them");
  AddCount(command, "--prefill-chunk-tokens", &options->prefill_chunk_tokens,
           "Tokens per prefill step");
  command->add_option("--prefill-cache", options->prefill_cache,
                      "Folder that keeps prefilled keys and values for the next run");
  command->callback(
      [=] { *chosen = [=](ComputePool& pool) { return RunQuality(*options, pool); }; });
}

void AddLink(CLI::App& app, Benchmark* chosen) {
  CLI::App* command = app.add_subcommand(
      "link", "Traffic between host and device tier on real texts, and modelled stalls");
  auto options = std::make_shared<LinkOptions>();
  AddModelOptions(command, options.get());
  AddChoice(command, &options->choice);
  command->add_option("--text", options->texts, "Text files (quality_corpus.py collects some)")
      ->required()
      ->check(CLI::ExistingFile);
  command->add_option("--max-texts", options->max_texts, "Of these, the first so many")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  AddCount(command, "--context", &options->context_len, "Tokens taken of each text");
  AddCount(command, "--decoded-tokens", &options->decoded_tokens, "The last of them");
  AddCount(command, "--selections-kept", &options->selections_kept,
           "Room in the device tier, in selections or, where there are more, in candidates");
  AddCount(command, "--prefill-chunk-tokens", &options->prefill_chunk_tokens,
           "Tokens per prefill step");
  command->add_option("--prefill-cache", options->prefill_cache,
                      "Folder that keeps prefilled keys and values for the next run");
  LinkModel& link = options->link;
  const auto number = [&](const char* flag, double* value, const char* help) {
    command->add_option(flag, *value, help)->capture_default_str()->check(CLI::NonNegativeNumber);
  };
  number("--link-gbps", &link.gbps, "Modelled link, 10^9 bytes a second");
  number("--link-latency-us", &link.latency_us, "Its latency");
  number("--step-ms", &link.step_ms, "Modelled step of the larger model without transfers");
  AddCount(command, "--shape-layers", &link.num_layers, "Shape of the larger model");
  AddCount(command, "--shape-kv-heads", &link.num_kv_heads, "The same");
  AddCount(command, "--shape-head-dim", &link.head_dim, "The same");
  AddCount(command, "--shape-budget", &link.token_budget, "Tokens that it attends to");
  command->callback([=] { *chosen = [=](ComputePool& pool) { return RunLink(*options, pool); }; });
}

}  // namespace tokenbutler
