#pragma once

#include <string>
#include <vector>

#include "tools/scoring/bootstrap.h"
#include "tools/scoring/checkpoint.h"

namespace tokenbutler {

// Columns of rows, and what summaries make of them.

// The values of one column; rows without it, or with null, are passed over.
std::vector<double> ColumnOf(const std::vector<Checkpoint::Json>& rows, const std::string& name);

// Their mean; null: none.
Checkpoint::Json MeanOf(const std::vector<Checkpoint::Json>& rows, const std::string& name);

// A column of rows and of their partners: those that have the same values of `shared` and those of
// `partner`. Rows without a partner are passed over.
struct PairedColumn {
  std::vector<double> own, partners;
};
PairedColumn PairUp(const Checkpoint& checkpoint, const std::vector<Checkpoint::Json>& rows,
                    const std::vector<std::string>& shared, const Checkpoint::Json& partner,
                    const std::string& column);

// What to call a difference: "tie" when its interval holds 0.
std::string Verdict(const MeanInterval& difference, bool less_is_better);

}  // namespace tokenbutler
