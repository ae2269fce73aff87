#pragma once

#include <optional>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "tokenbutler/v1/inference.pb.h"

namespace tokenbutler {

// Flags that `chat` and `generate` share: how to generate. Bounds are the server's to check.
struct GenerationFlags {
  std::string model;
  std::optional<int> max_tokens;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::string policy, setting;  // of the attention; empty: the server's
  std::optional<int> token_budget;
  int priority = 0;

  void AddTo(CLI::App* app);
  void ApplyTo(v1::GenerateRequest* request) const;
};

}  // namespace tokenbutler
