#include "tools/scoring/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "engine/selection/attention_options.h"

namespace tokenbutler {
namespace {

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

// NAME and the options behind its colon; "": none.
std::pair<std::string_view, std::string_view> SplitName(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {text, {}};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

template <typename Number>
bool ParseNumber(std::string_view text, Number* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// "1/8" or "0.125".
absl::StatusOr<double> ParseShare(std::string_view option, std::string_view text) {
  const std::vector<std::string_view> parts = Split(text, '/');
  double value = 0, divisor = 1;
  const bool is_number = parts.size() <= 2 && ParseNumber(parts[0], &value) &&
                         (parts.size() == 1 || ParseNumber(parts[1], &divisor));
  if (!is_number || !(value / divisor > 0 && value / divisor <= 1)) {
    return InvalidArgumentError("{} is \"{}\", must be a share in (0, 1]: 1/8 or 0.125", option,
                                text);
  }
  return value / divisor;
}

absl::StatusOr<int> ParseCount(std::string_view option, std::string_view text) {
  int value = 0;
  if (ParseNumber(text, &value) && value >= 0) return value;
  return InvalidArgumentError("{} is \"{}\", must be a whole number from 0 to 2147483647", option,
                              text);
}

absl::Status SetCandidates(std::string_view text, Setting* setting) {
  setting->candidates_share = 0;
  setting->candidates_budgets = 0;
  setting->params.candidates = 0;
  if (text.ends_with('x')) {
    text.remove_suffix(1);
    if (ParseNumber(text, &setting->candidates_budgets) && setting->candidates_budgets >= 1) {
      return absl::OkStatus();
    }
    return InvalidArgumentError("candidates is \"{}x\", must be a multiple of the budget: 2x",
                                text);
  }
  if (text.find_first_of("/.") == std::string_view::npos) {
    ASSIGN_OR_RETURN(setting->params.candidates, ParseCount("candidates", text));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(setting->candidates_share, ParseShare("candidates", text));
  return absl::OkStatus();
}

absl::Status SetOption(std::string_view option, std::string_view value, Setting* setting) {
  AttentionParams& params = setting->params;
  if (option == "candidates") return SetCandidates(value, setting);
  if (option == "scan" || option == "top_p") {
    ASSIGN_OR_RETURN(const double share, ParseShare(option, value));
    (option == "scan" ? params.scan_fraction : params.top_p) = static_cast<float>(share);
  } else if (option == "query") {
    ASSIGN_OR_RETURN(params.query, ParseQuerySource(value));
  } else if (option == "keys") {
    ASSIGN_OR_RETURN(params.keys, ParseKeyFormat(value));
  } else if (option == "misses") {
    ASSIGN_OR_RETURN(params.misses, ParseMissRule(value));
  } else if (option == "interval") {
    ASSIGN_OR_RETURN(params.prediction_interval, ParseCount(option, value));
  } else if (option == "neighbours") {
    ASSIGN_OR_RETURN(params.neighbours, ParseCount(option, value));
  } else if (option == "dense_first_layer") {
    ASSIGN_OR_RETURN(const int on, ParseCount(option, value));
    params.dense_first_layer = on != 0;
  } else if (option == "sink") {
    ASSIGN_OR_RETURN(setting->sink_tokens, ParseCount(option, value));
  } else if (option == "local") {
    ASSIGN_OR_RETURN(setting->local_window, ParseCount(option, value));
  } else {
    return InvalidArgumentError(
        "the option \"{}\" is unknown, must be interval, candidates, scan, query, keys, "
        "neighbours, top_p, dense_first_layer, misses, sink or local",
        option);
  }
  return absl::OkStatus();
}

absl::Status Apply(std::string_view options, Setting* setting) {
  for (const std::string_view assignment : Split(options, ',')) {
    const size_t equals = assignment.find('=');
    if (equals == std::string_view::npos) {
      return InvalidArgumentError("\"{}\" is no OPTION=VALUE", assignment);
    }
    RETURN_IF_ERROR(
        SetOption(assignment.substr(0, equals), assignment.substr(equals + 1), setting));
  }
  return absl::OkStatus();
}

// `text` with `option` set to each of `values` unless it sets it itself.
std::vector<std::string> WithEach(const std::string& text, std::string_view option,
                                  const std::vector<std::string>& values) {
  const std::string assignment = fmt::format("{}=", option);
  if (values.empty() || text.find(assignment) != std::string::npos) return {text};
  std::vector<std::string> all;
  all.reserve(values.size());
  for (const std::string& value : values) {
    const char separator = text.find(':') == std::string::npos ? ':' : ',';
    all.push_back(fmt::format("{}{}{}{}", text, separator, assignment, value));
  }
  return all;
}

// REQUIRES: `params` are by WithSetting, which sets the keys.
std::string MeaningOf(const AttentionParams& params) {
  return fmt::format("{}:keys={},scan={},interval={}", PolicyName(params.policy),
                     KeyFormatName(*params.keys), params.scan_fraction, params.prediction_interval);
}

bool IsNamed(std::string_view name) { return ParseAttentionSetting(name).ok(); }

// Whether a sweep's values mean something: chance has no better and worse scans.
bool Sweeps(AttentionPolicy policy) {
  return UsesOption(policy, "candidates") && policy != AttentionPolicy::kRandom;
}

}  // namespace

AttentionParams Setting::At(const TokenCounts& counts) const {
  AttentionParams at = params;
  at.token_budget = counts.token_budget;
  at.sink_tokens = sink_tokens.value_or(counts.sink_tokens);
  at.local_window = local_window.value_or(counts.local_window);
  if (candidates_budgets > 0) {
    at.candidates = static_cast<int>(std::lround(candidates_budgets * counts.token_budget));
  }
  if (candidates_share > 0) {
    at.candidates = static_cast<int>(std::lround(candidates_share * counts.context_len));
  }
  // Fewer would not hold the budget itself.
  if (at.candidates > 0) at.candidates = std::max(at.candidates, at.token_budget);
  return at;
}

absl::StatusOr<Setting> ParseSetting(std::string_view text) {
  Setting setting;
  setting.label = std::string(text);
  const auto [name, options] = SplitName(text);
  if (const auto named = ParseAttentionSetting(name); named.ok()) {
    setting.params = WithSetting(*named, AttentionParams());
    setting.meaning = MeaningOf(setting.params);
  } else {
    ASSIGN_OR_RETURN(const AttentionPolicy policy, ParsePolicy(name));
    setting.params = DefaultParams(policy);
  }
  // Policies whose rule has a sink and a window of its own keep them.
  const AttentionParams general;
  if (setting.params.sink_tokens != general.sink_tokens) {
    setting.sink_tokens = setting.params.sink_tokens;
  }
  if (setting.params.local_window != general.local_window) {
    setting.local_window = setting.params.local_window;
  }
  if (!options.empty()) RETURN_IF_ERROR(Apply(options, &setting));
  return setting;
}

absl::StatusOr<std::vector<Setting>> ParseSettings(const std::vector<std::string>& texts,
                                                   const Sweep& sweep) {
  std::vector<Setting> settings;
  std::vector<std::string> seen;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(const Setting base, ParseSetting(text));
    std::vector<std::string> all = {text};
    if (Sweeps(base.params.policy) && !IsNamed(SplitName(text).first)) {
      for (const auto& [option, values] :
           {std::pair<std::string_view, const std::vector<std::string>&>{"interval",
                                                                         sweep.intervals},
            {"candidates", sweep.candidates},
            {"scan", sweep.scan_fractions},
            {"neighbours", sweep.neighbours}}) {
        std::vector<std::string> next;
        for (const std::string& one : all) {
          for (std::string& with : WithEach(one, option, values)) next.push_back(std::move(with));
        }
        all = std::move(next);
      }
    }
    for (const std::string& one : all) {
      if (std::find(seen.begin(), seen.end(), one) != seen.end()) continue;
      seen.push_back(one);
      ASSIGN_OR_RETURN(settings.emplace_back(), ParseSetting(one));
    }
  }
  return settings;
}

absl::StatusOr<int> ParseBudget(std::string_view text, int context_len) {
  int budget = 0;
  if (text.find_first_of("/.") == std::string_view::npos) {
    ASSIGN_OR_RETURN(budget, ParseCount("budget", text));
  } else {
    ASSIGN_OR_RETURN(const double share, ParseShare("budget", text));
    budget = static_cast<int>(std::lround(share * context_len));
  }
  if (budget >= 1 && budget <= context_len) return budget;
  return InvalidArgumentError("budget is {} tokens (\"{}\"), must be in [1, {}]", budget, text,
                              context_len);
}

std::vector<std::string> AllSettings() {
  std::vector<std::string> all = {"dense"};
  for (const AttentionSetting named : kAttentionSettings) {
    all.emplace_back(AttentionSettingName(named));
  }
  for (const AttentionPolicy policy :
       {AttentionPolicy::kSketch, AttentionPolicy::kPca, AttentionPolicy::kQuest,
        AttentionPolicy::kTokenButler, AttentionPolicy::kExact, AttentionPolicy::kSnapKv,
        AttentionPolicy::kH2o, AttentionPolicy::kStreamingLlm, AttentionPolicy::kXkv,
        AttentionPolicy::kRandom}) {
    all.emplace_back(PolicyName(policy));
  }
  return all;
}

}  // namespace tokenbutler
