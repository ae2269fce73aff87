#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "tools/scoring/measured_model.h"

namespace tokenbutler {

// A text that is run through a model.
struct TextDocument {
  std::string name;         // of the file
  std::string fingerprint;  // of the whole file
  std::vector<int32_t> tokens;
};

// The first `num_tokens` tokens of a file. NOT_FOUND when it cannot be read, INVALID_ARGUMENT when
// it is shorter, or empty. REQUIRES: the model has a tokenizer.
absl::StatusOr<TextDocument> ReadTextDocument(const std::string& path, int num_tokens,
                                              const MeasuredModel& model);

// 64-bit FNV-1a of the bytes: tells files apart, protects against nothing. `begin`: of the bytes
// before them.
uint64_t Fingerprint(absl::Span<const std::byte> bytes, uint64_t begin = 0xcbf29ce484222325u);

}  // namespace tokenbutler
