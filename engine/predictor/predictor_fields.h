#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tokenbutler {

// What a predictor file's format field says, and which version of the format this is.
inline constexpr std::string_view kPredictorFormat = "tokenbutler-predictor";
inline constexpr int kPredictorFormatVersion = 1;

// The metadata of a predictor file by key.
using PredictorFields = std::map<std::string, std::string>;

struct Predictor;

// Between the numbers and names of a predictor and its metadata. Reading checks that every field
// is there and is what it should be (INVALID_ARGUMENT naming it); bounds and tensors are
// Predictor::Validate's.
PredictorFields ToPredictorFields(const Predictor& predictor);
absl::StatusOr<Predictor> FromPredictorFields(const PredictorFields& fields);
// Whether `late_projections` says that there are some.
absl::StatusOr<bool> HasLateProjections(const PredictorFields& fields);

}  // namespace tokenbutler
