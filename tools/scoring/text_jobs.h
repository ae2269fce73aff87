#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/selection/attention_params.h"
#include "engine/step_runner.h"
#include "tools/scoring/checkpoint.h"
#include "tools/scoring/settings.h"
#include "tools/scoring/text_document.h"

namespace tokenbutler {

// One setting at one budget, on texts of one length: a row of a table.
struct TextJob {
  std::string label;
  AttentionParams params;
  std::string meaning = {};    // Setting::meaning
  std::string predictor = {};  // name and digest of the file that the setting works with; "": none

  // Of its rows in a checkpoint.
  Checkpoint::Json Key() const;
  // Of its row for one text.
  Checkpoint::Json KeyFor(const TextDocument& document) const;
  // Its rows for all texts.
  std::vector<Checkpoint::Json> RowsIn(const Checkpoint& checkpoint) const;
};

// A file's name and a digest that tells it from others of that name. NOT_FOUND when it cannot be
// read.
absl::StatusOr<std::string> NameOfFile(const std::string& path);

// The chosen settings at every budget, without dense unless `with_dense`. INVALID_ARGUMENT when one
// cannot be parsed, NOT_FOUND when the predictor cannot be read.
absl::StatusOr<std::vector<TextJob>> TextJobsOf(const SettingOptions& choice, int context_len,
                                                bool with_dense = false);

// Takes out the jobs that the model cannot be run with; what and why, also on stderr.
std::vector<std::string> RemoveRefused(const StepRunner& runner, std::vector<TextJob>* jobs);

}  // namespace tokenbutler
