#include "bench/sparse_commands.h"

#include <memory>
#include <string>

#include "bench/benchmarks.h"
#include "tools/scoring/setting_flags.h"

namespace tokenbutler {

void AddDecode(CLI::App& app, Measurement* chosen) {
  CLI::App* command = app.add_subcommand(
      "decode", "Time per token against the context for each policy, beside dense and the floor");
  auto options = std::make_shared<DecodeOptions>();
  AddModelFlags(command, {&options->model, &options->dtype, &options->kv_dtype});
  AddSettingFlags(command, &options->choice);
  AddBudgetFlag(command, &options->choice.token_budgets);
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
  AddCountFlag(command, "--repeats", &options->repeats, "Times each row is measured");
  AddCountFlag(command, "--steps", &options->steps, "Steps of a repeat, rounded up to intervals");
  command
      ->add_option("--max-seconds-per-case", options->max_seconds_per_case,
                   "A row that takes longer gets fewer repeats, deeper ones of its setting none")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->callback(
      [=] { *chosen = [=](ComputePool& pool) { return RunDecode(*options, pool); }; });
}

void AddLink(CLI::App& app, Measurement* chosen) {
  CLI::App* command = app.add_subcommand(
      "link", "Traffic between host and device tier on real texts, and modelled stalls");
  auto options = std::make_shared<LinkOptions>();
  AddModelFlags(command, {&options->model, &options->dtype, &options->kv_dtype});
  AddSettingFlags(command, &options->choice);
  AddBudgetFlag(command, &options->choice.token_budgets);
  command->add_option("--text", options->texts, "Text files (quality_corpus.py collects some)")
      ->required()
      ->check(CLI::ExistingFile);
  command->add_option("--max-texts", options->max_texts, "Of these, the first so many")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  AddCountFlag(command, "--context", &options->context_len, "Tokens taken of each text");
  AddCountFlag(command, "--decoded-tokens", &options->decoded_tokens, "The last of them");
  AddCountFlag(command, "--selections-kept", &options->selections_kept,
               "Room in the device tier, in selections or, where there are more, in candidates");
  AddCountFlag(command, "--prefill-chunk-tokens", &options->prefill_chunk_tokens,
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
  AddCountFlag(command, "--shape-layers", &link.num_layers, "Shape of the larger model");
  AddCountFlag(command, "--shape-kv-heads", &link.num_kv_heads, "The same");
  AddCountFlag(command, "--shape-head-dim", &link.head_dim, "The same");
  AddCountFlag(command, "--shape-budget", &link.token_budget, "Tokens that it attends to");
  command->callback([=] { *chosen = [=](ComputePool& pool) { return RunLink(*options, pool); }; });
}

}  // namespace tokenbutler
