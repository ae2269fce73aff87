#include "tools/scoring/setting_flags.h"

#include "CLI/CLI.hpp"
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

}  // namespace

void AddModelFlags(CLI::App* command, const ModelFlags& flags) {
  command->add_option("model", *flags.model, "A .gguf file or a Hugging Face folder")->required();
  command->add_option("--dtype", *flags.dtype, "Compute dtype; default: the server's choice")
      ->check(CLI::IsMember({"bfloat16", "float32"}));
  command->add_option("--kv-dtype", *flags.kv_dtype, "Of the KV cache; default: the compute dtype")
      ->check(CLI::IsMember({"bfloat16", "float16", "float32", "int8"}));
}

void AddSettingFlags(CLI::App* command, SettingOptions* choice) {
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
  command->add_option("--neighbours", choice->sweep.neighbours,
                      "The same with these numbers of tokens beside each chosen one");
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

void AddBudgetFlag(CLI::App* command, std::vector<int>* token_budgets) {
  command->add_option("--budgets", *token_budgets, "Tokens attended to per KV head")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
}

void AddCountFlag(CLI::App* command, const char* flag, int* value, const char* help) {
  command->add_option(flag, *value, help)->capture_default_str()->check(CLI::PositiveNumber);
}

}  // namespace tokenbutler
