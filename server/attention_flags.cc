#include "server/attention_flags.h"

#include <string>

#include "CLI/CLI.hpp"
#include "base/status_details.h"

namespace tokenbutler {
namespace {

constexpr char kGroup[] = "Attention (of requests that do not say)";

// A flag whose value is a name.
template <typename Value, typename Parse>
void AddName(CLI::App& app, const char* flag, const char* help, std::optional<Value>* target,
             Parse parse, const char* default_text) {
  const auto set = [target, parse, flag](const std::string& text) {
    auto parsed = parse(text);
    if (!parsed.ok()) throw CLI::ValidationError(flag, std::string(parsed.status().message()));
    *target = *parsed;
  };
  app.add_option_function<std::string>(flag, set, help)->default_str(default_text)->group(kGroup);
}

template <typename Value>
void AddNumber(CLI::App& app, const char* flag, const char* help, std::optional<Value>* target,
               const char* default_text) {
  app.add_option(flag, *target, help)->default_str(default_text)->group(kGroup);
}

}  // namespace

void AddAttentionFlags(CLI::App& app, AttentionOptions* flags) {
  AddName(app, "--policy",
          "Which tokens a decode step attends to: dense, tokenbutler, sketch, pca, quest, exact, "
          "snapkv, h2o, streaming_llm, xkv or random",
          &flags->policy, ParsePolicy, "sketch");
  AddName(app, "--attention-setting", "quality or fast: measured choices of policy and options",
          &flags->setting, ParseAttentionSetting, "");
  AddNumber(app, "--token-budget",
            "Tokens attended per KV head and step; shorter contexts are attended to as a whole",
            &flags->token_budget, "4096");
  AddNumber(app, "--sink-tokens", "First tokens, always attended; 4 for streaming_llm",
            &flags->sink_tokens, "128");
  AddNumber(app, "--local-window", "Last tokens, always attended; 32 for snapkv",
            &flags->local_window, "512");
  AddNumber(app, "--prediction-interval", "Decode steps between two scans of all tokens, 1 to 16",
            &flags->prediction_interval, "1");
  AddNumber(app, "--candidates",
            "Tokens kept between scans and ranked anew each step; 0: the budget's; with sketch and "
            "--offload staged: half as many again as the budget's",
            &flags->candidates, "0");
  AddNumber(app, "--neighbours", "Also attended on each side of a selected token",
            &flags->neighbours, "0");
  AddNumber(app, "--attention-top-p", "Stop selecting at this share of the predicted mass",
            &flags->top_p, "1");
  AddName(app, "--query",
          "What scores tokens: real, lookahead or mlp; default: as the policy has it, lookahead "
          "for sketch with --offload staged",
          &flags->query, ParseQuerySource, "");
  AddName(
      app, "--keys",
      "What is kept of the keys: bits1, bits2, bits4 or projected; default: as the policy has it",
      &flags->keys, ParseKeyFormat, "");
  AddNumber(app, "--scan-fraction",
            "Share of the blocks scanned at each step between two scans of all; 1: none",
            &flags->scan_fraction, "1");
  AddNumber(app, "--dense-first-layer", "true: layer 0 attends to all tokens",
            &flags->dense_first_layer, "false");
  AddName(app, "--misses", "Selected tokens that are not on the device: on_demand or deferred",
          &flags->misses, ParseMissRule, "on_demand");
}

absl::StatusOr<AttentionParams> ResolveAttentionFlags(const AttentionOptions& flags,
                                                      bool is_staged) {
  auto params = ResolveAttention(
      is_staged ? DefaultStagedParams() : DefaultParams(AttentionPolicy::kSketch), flags);
  if (!params.ok()) return Annotate(params.status(), "the attention flags");
  return params;
}

}  // namespace tokenbutler
