#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "engine/request.h"
#include "offload/block_table.h"
#include "tools/scoring/measured_model.h"

namespace tokenbutler {

// Prefilled K and V rows in files, one per text, so that a measurement that is run again for one
// more policy does not prefill again. A file's name says the model, the dtypes of its cache and
// weights, RoPE, block size and the tokens, its end what the bytes before it are; rows of a program
// that computes otherwise are not told apart: remove the folder then.
class PrefillCache {
 public:
  // `folder` is created when it is missing; "": nothing is kept. `model` says which weights.
  PrefillCache(std::string folder, std::string model, MeasuredModel& measured)
      : folder_(std::move(folder)), model_(std::move(model)), measured_(measured) {}

  // The rows of `tokens`; null: there is no whole and undamaged file.
  std::shared_ptr<const PromptRows> Load(absl::Span<const int32_t> tokens) const;
  // Writes the rows of `tokens`, which are in these blocks. INTERNAL naming the file when it cannot
  // be written.
  absl::Status Store(absl::Span<const int32_t> tokens, const BlockTable& table) const;

 private:
  std::string PathOf(absl::Span<const int32_t> tokens) const;

  const std::string folder_, model_;
  MeasuredModel& measured_;
};

}  // namespace tokenbutler
