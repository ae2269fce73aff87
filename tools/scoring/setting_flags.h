#pragma once

#include <string>
#include <vector>

#include "tools/scoring/settings.h"

namespace CLI {
class App;
}

namespace tokenbutler {

// Flags that programs which measure models and settings have in common. What they set must outlive
// the parsing.

struct ModelFlags {
  std::string* model;  // a .gguf file or a Hugging Face folder
  std::string* dtype;
  std::string* kv_dtype;
};
// MODEL, --dtype, --kv-dtype.
void AddModelFlags(CLI::App* command, const ModelFlags& flags);

// --settings and what goes with them: sweeps, sink and window, predictor, --resume.
void AddSettingFlags(CLI::App* command, SettingOptions* choice);

// --budgets in tokens.
void AddBudgetFlag(CLI::App* command, std::vector<int>* token_budgets);

// A number of at least 1.
void AddCountFlag(CLI::App* command, const char* flag, int* value, const char* help);

}  // namespace tokenbutler
