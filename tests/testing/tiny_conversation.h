#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/selection/attention_params.h"
#include "offload/resident_tokens.h"
#include "tests/testing/loaded_runner.h"

namespace tokenbutler {

// tests/data/tiny_models/`name`.
std::string TinyModelPath(const std::string& name);
// The model from there. Throws when it cannot be loaded (the test fails with the message).
std::unique_ptr<LoadedRunner> LoadTiny(const std::string& name,
                                       const LoadedRunner::Options& options);

// Token ids of the tiny models, which have 96, without a pattern.
std::vector<int32_t> TinyTokens(int count, uint32_t seed);

// Prefills 61 tokens in chunks, decodes 40, prefills 30 and decodes 40 again, as a conversation
// goes: the logits of all. `counters`: also what moved between the tiers.
std::vector<float> Converse(LoadedRunner& model, const AttentionParams& attention,
                            int chunk_tokens = 16, OffloadCounters* counters = nullptr);

}  // namespace tokenbutler
