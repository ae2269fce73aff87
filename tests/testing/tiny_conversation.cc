#include "tests/testing/tiny_conversation.h"

#include <stdexcept>
#include <utility>

namespace tokenbutler {

std::string TinyModelPath(const std::string& name) {
  return std::string(TOKENBUTLER_TEST_DATA) + "/tiny_models/" + name;
}

std::unique_ptr<LoadedRunner> LoadTiny(const std::string& name,
                                       const LoadedRunner::Options& options) {
  auto loaded = LoadedRunner::Load(TinyModelPath(name), options);
  if (!loaded.ok()) throw std::runtime_error(std::string(loaded.status().message()));
  return *std::move(loaded);
}

std::vector<int32_t> TinyTokens(int count, uint32_t seed) {
  std::vector<int32_t> ids;
  uint32_t state = seed * 2654435761u + 1;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>((state >> 16) % 96));
  }
  return ids;
}

std::vector<float> Converse(LoadedRunner& model, const AttentionParams& attention, int chunk_tokens,
                            OffloadCounters* counters) {
  BlockTable sequence = model.NewSequence(200, attention);
  const std::unique_ptr<SequenceState> state = model.NewState(attention);
  std::vector<float> logits;
  uint32_t seed = 1;
  for (const int count : {61, 40, 30, 40}) {
    const std::vector<int32_t> tokens = TinyTokens(count, seed++);
    const std::vector<float> more = seed % 2 == 0
                                        ? model.Prefill(sequence, tokens, chunk_tokens, state.get())
                                        : model.Decode(sequence, tokens, state.get());
    logits.insert(logits.end(), more.begin(), more.end());
  }
  if (counters != nullptr) *counters = state->stats().offload;
  return logits;
}

}  // namespace tokenbutler
