#include "tools/scoring/text_jobs.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "fmt/format.h"

namespace tokenbutler {

absl::StatusOr<std::string> NameOfFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return NotFoundError("{} is no file", path);
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (bytes.empty()) return NotFoundError("{} cannot be read, or is empty", path);
  return fmt::format("{}@{:016x}", std::filesystem::path(path).filename().string(),
                     Fingerprint({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}));
}

Checkpoint::Json TextJob::Key() const {
  Checkpoint::Json key = {{"setting", label}, {"token_budget", params.token_budget}};
  if (!meaning.empty()) key["meaning"] = meaning;
  if (!predictor.empty()) key["predictor"] = predictor;
  return key;
}

Checkpoint::Json TextJob::KeyFor(const TextDocument& document) const {
  Checkpoint::Json key = {{"document", document.name}, {"fingerprint", document.fingerprint}};
  key.update(Key());
  return key;
}

std::vector<Checkpoint::Json> TextJob::RowsIn(const Checkpoint& checkpoint) const {
  return checkpoint.FindAll(Key());
}

absl::StatusOr<std::vector<TextJob>> TextJobsOf(const SettingOptions& choice, int context_len,
                                                bool with_dense) {
  ASSIGN_OR_RETURN(const std::vector<Setting> settings,
                   ParseSettings(choice.settings, choice.sweep));
  std::string predictor;
  if (!choice.predictor.empty()) {
    ASSIGN_OR_RETURN(predictor, NameOfFile(choice.predictor));
  }
  std::vector<TextJob> jobs;
  for (const int token_budget : choice.token_budgets) {
    for (const Setting& setting : settings) {
      if (!setting.params.sparse() && !with_dense) continue;  // what the others are compared with
      const bool is_learned = setting.params.policy == AttentionPolicy::kTokenButler;
      jobs.push_back({.label = setting.label,
                      .params = setting.At({.context_len = context_len,
                                            .token_budget = token_budget,
                                            .sink_tokens = choice.sink_tokens,
                                            .local_window = choice.local_window}),
                      .meaning = setting.meaning,
                      .predictor = is_learned ? predictor : ""});
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
