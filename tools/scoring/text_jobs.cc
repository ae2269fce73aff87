#include "tools/scoring/text_jobs.h"

#include <cstdio>

#include "fmt/format.h"

namespace tokenbutler {

Checkpoint::Json TextJob::KeyFor(const TextDocument& document) const {
  return {{"document", document.name},
          {"fingerprint", document.fingerprint},
          {"setting", label},
          {"token_budget", params.token_budget}};
}

std::vector<Checkpoint::Json> TextJob::RowsIn(const Checkpoint& checkpoint) const {
  std::vector<Checkpoint::Json> rows;
  for (const Checkpoint::Json& row : checkpoint.rows()) {
    if (row["setting"] == label && row["token_budget"] == params.token_budget) rows.push_back(row);
  }
  return rows;
}

absl::StatusOr<std::vector<TextJob>> TextJobsOf(const SettingOptions& choice, int context_len,
                                                bool with_dense) {
  ASSIGN_OR_RETURN(const std::vector<Setting> settings,
                   ParseSettings(choice.settings, choice.sweep));
  std::vector<TextJob> jobs;
  for (const int token_budget : choice.token_budgets) {
    for (const Setting& setting : settings) {
      if (!setting.params.sparse() && !with_dense) continue;  // what the others are compared with
      jobs.push_back({setting.label, setting.At({.context_len = context_len,
                                                 .token_budget = token_budget,
                                                 .sink_tokens = choice.sink_tokens,
                                                 .local_window = choice.local_window})});
    }
  }
  return jobs;
}

std::vector<std::string> RemoveRefused(const StepRunner& runner, std::vector<TextJob>* jobs) {
  std::vector<std::string> refused;
  std::erase_if(*jobs, [&](const TextJob& job) {
    const absl::Status status = runner.CheckAttention(job.params);
    if (status.ok()) return false;
    refused.push_back(fmt::format("{}: {}", job.label, std::string(status.message())));
    fmt::print(stderr, "left out: {}\n", refused.back());
    return true;
  });
  return refused;
}

}  // namespace tokenbutler
