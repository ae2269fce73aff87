#pragma once

#include <string>

namespace tokenbutler {

// The predictor in use, as the log and GetServerInfo tell it.
struct PredictorInUse {
  std::string path;    // empty: none
  std::string kind;    // "lookahead"; empty: none
  std::string reason;  // why this one, or why none
};

}  // namespace tokenbutler
