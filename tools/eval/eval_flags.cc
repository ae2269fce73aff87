#include "CLI/CLI.hpp"
#include "tools/eval/commands.h"
#include "tools/scoring/setting_flags.h"

namespace tokenbutler {

void AddEvalFlags(CLI::App* command, EvalOptions* options) {
  AddModelFlags(command, {&options->model, &options->dtype, &options->kv_dtype});
  AddSettingFlags(command, &options->choice);
  command->get_option("--predictor")
      ->description(
          "Predictor file of the policy tokenbutler; default: the one in "
          "share/tokenbutler/predictors that knows the model's files");
  command
      ->add_option("--budgets", options->budgets,
                   "Tokens attended to per KV head, or shares of the context: 1/8")
      ->capture_default_str();
  command
      ->add_option("--block-size", options->block_size,
                   "Tokens of a KV block: keys are quantised, and windows begin, by whole blocks")
      ->capture_default_str()
      ->check(CLI::IsMember({16, 32, 64, 128, 256, 512}));
  AddCountFlag(command, "--batch", &options->batch,
               "Settings that run together: more are faster and take more memory");
  AddCountFlag(command, "--prefill-chunk-tokens", &options->prefill_chunk_tokens,
               "Tokens per prefill step");
  command->add_option("--prefill-cache", options->prefill_cache,
                      "Folder that keeps prefilled keys and values for the next run");
  command
      ->add_option("--probe-rate", options->probe_rate,
                   "Layers compared with the attention over all tokens in each step, on average; "
                   "each costs a dense layer")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_flag("!--no-device-tier", options->has_device_tier,
                    "Read the host's memory in place: nothing is moved, and nothing counted");
}

}  // namespace tokenbutler
