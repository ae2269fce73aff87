#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tokenbutler {

// tests/data/tokenizers as tools/golden/make_tokenizer_goldens.py writes it (formats there).

struct GoldenEncoding {
  int corpus_index = 0;
  std::vector<int32_t> literal;  // control tokens in the text stay text
  std::vector<int32_t> parsed;   // and become ids
};

struct GoldenDecoding {
  std::vector<int32_t> ids;
  std::string text;                  // of all tokens
  std::string text_without_special;  // special tokens skipped
};

struct GoldenFile {
  int vocab_size = 0;
  bool add_special_tokens = false;
  std::vector<GoldenEncoding> encodings;
  std::vector<GoldenDecoding> decodings;
};

std::string TokenizerDataPath(const std::string& file);

absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

// The strings of corpus.bin, which need not be UTF-8.
absl::StatusOr<std::vector<std::string>> ReadCorpus();

// NAME.ids.
absl::StatusOr<GoldenFile> ReadGoldenFile(const std::string& name);

}  // namespace tokenbutler
