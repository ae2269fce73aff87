#pragma once

#include <filesystem>

namespace tokenbutler {

// A Hugging Face folder with a whole model in it, for tests of the whole program: a Qwen2 whose
// random weights are always the same, a context of kTinyModelLen tokens, the small golden
// tokenizer, a ChatML template. Its name is the folder's. Throws when it cannot write.
void WriteTinyModel(const std::filesystem::path& folder, int num_layers = 2);

constexpr int kTinyModelLen = 512;
constexpr int kTinyModelVocab = 708;

}  // namespace tokenbutler
