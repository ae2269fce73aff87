#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tokenbutler {

// The token sequences that a predictor is trained and validated on. What a call returns depends on
// its argument, the seed and the texts alone, never on earlier calls: a run that is resumed sees
// what an uninterrupted one would have seen. One thread.
class TokenSequences {
 public:
  virtual ~TokenSequences() = default;

  // Tokens of every sequence.
  virtual int length() const = 0;

  // Training sequence `index`, any number from 0 on: [length()] ids. A run takes them in this
  // order.
  virtual absl::StatusOr<std::vector<int32_t>> Training(int64_t index) = 0;

  // Validation sequences, of documents that no training sequence is from; at least 1.
  virtual int num_validation() const = 0;
  // [length()] ids. `index` in [0, num_validation()).
  virtual absl::StatusOr<std::vector<int32_t>> Validation(int index) = 0;

  // What the texts are, for the predictor file's metadata, keys beginning with "data":
  // names, versions, tokens, whatever tells somebody else how to get the same.
  virtual std::string Description() const = 0;
  // A digest of what the sequences depend on: a checkpoint is resumed only with the same.
  virtual std::string Fingerprint() const = 0;
};

}  // namespace tokenbutler
