#include "tools/cli/generation_flags.h"

#include "CLI/CLI.hpp"

namespace tokenbutler {

void GenerationFlags::AddTo(CLI::App* app) {
  constexpr char kGroup[] = "Generation";
  app->add_option("--model", model, "Name of the model; default: the one that is served")
      ->group(kGroup);
  app->add_option("--max-tokens", max_tokens,
                  "Tokens to generate at most; default: until the context is full")
      ->group(kGroup);
  app->add_option("--temperature", temperature, "0: always the most likely token; default: 1")
      ->group(kGroup);
  app->add_option("--top-p", top_p, "Keep the likeliest tokens of this probability together")
      ->group(kGroup);
  app->add_option("--top-k", top_k, "Keep this many of the likeliest tokens; 0: all")
      ->group(kGroup);
  app->add_option("--min-p", min_p, "Keep tokens this likely relative to the likeliest")
      ->group(kGroup);
  app->add_option("--repetition-penalty", repetition_penalty, "Above 1: repeat less")
      ->group(kGroup);
  app->add_option("--seed", seed, "Same seed, same request: same text")
      ->check(CLI::NonNegativeNumber)  // CLI11 takes -1 for the largest
      ->group(kGroup);
  app->add_option("--stop", stop, "End before this text; may be given more than once")
      ->allow_extra_args(false)  // the text may follow
      ->group(kGroup);
  app->add_flag("--ignore-eos", ignore_eos, "Go on after the model's end of text")->group(kGroup);
  app->add_option(
         "--policy", policy,
         "Which tokens are attended to: dense, sketch, exact, streaming_llm, ...; default: "
         "the server's")
      ->group(kGroup);
  app->add_option("--setting,--attention-setting", setting,
                  "quality or fast: measured choices of policy and options")
      ->group(kGroup);
  app->add_option("--token-budget", token_budget, "Tokens attended per KV head and step")
      ->group(kGroup);
  app->add_option("--priority", priority, "Higher goes first")->group(kGroup);
}

void GenerationFlags::ApplyTo(v1::GenerateRequest* request) const {
  request->set_model(model);
  if (max_tokens) request->set_max_tokens(*max_tokens);
  v1::SamplingOptions* sampling = request->mutable_sampling();
  if (temperature) sampling->set_temperature(*temperature);
  if (top_p) sampling->set_top_p(*top_p);
  if (top_k) sampling->set_top_k(*top_k);
  if (min_p) sampling->set_min_p(*min_p);
  if (repetition_penalty) sampling->set_repetition_penalty(*repetition_penalty);
  if (seed) sampling->set_seed(*seed);
  for (const std::string& text : stop) request->mutable_stop()->add_strings(text);
  request->mutable_stop()->set_ignore_eos(ignore_eos);
  v1::AttentionOptions* attention = request->mutable_attention();
  attention->set_policy(policy);
  attention->set_setting(setting);
  if (token_budget) attention->set_token_budget(*token_budget);
  request->set_priority(priority);
}

}  // namespace tokenbutler
