#include <memory>

#include "CLI/CLI.hpp"
#include "tools/eval/commands.h"
#include "tools/eval/kl.h"
#include "tools/scoring/setting_flags.h"

namespace tokenbutler {

void AddKl(CLI::App& app, Measurement* chosen) {
  CLI::App* command = app.add_subcommand(
      "kl", "Divergence of each setting's next-token distributions from dense attention's");
  auto options = std::make_shared<KlOptions>();
  AddEvalFlags(command, &options->eval);
  command
      ->add_option("--text", options->texts,
                   "Text files, or folders of them; those that are too short are left out")
      ->required()
      ->check(CLI::ExistingPath);
  AddCountFlag(command, "--max-texts", &options->max_texts,
               "Of those that are long enough, the first so many");
  AddCountFlag(command, "--context", &options->eval.context_len, "Tokens taken of each text");
  AddCountFlag(command, "--scored-tokens", &options->scored_tokens, "The last of them");
  AddCountFlag(command, "--slow-texts", &options->slow_texts,
               "How many of the texts h2o, snapkv and xkv get, which take minutes for each");
  command->callback([=] { *chosen = [=](ComputePool& pool) { return RunKl(*options, pool); }; });
}

}  // namespace tokenbutler
