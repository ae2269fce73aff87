#include "tools/eval/row_columns.h"

#include <numeric>

namespace tokenbutler {

using Json = Checkpoint::Json;

std::vector<double> ColumnOf(const std::vector<Json>& rows, const std::string& name) {
  std::vector<double> values;
  for (const Json& row : rows) {
    if (row.contains(name) && !row[name].is_null()) values.push_back(row[name].get<double>());
  }
  return values;
}

Json MeanOf(const std::vector<Json>& rows, const std::string& name) {
  const std::vector<double> values = ColumnOf(rows, name);
  if (values.empty()) return Json();
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

PairedColumn PairUp(const Checkpoint& checkpoint, const std::vector<Json>& rows,
                    const std::vector<std::string>& shared, const Json& partner,
                    const std::string& column) {
  PairedColumn pairs;
  for (const Json& row : rows) {
    Json key = partner;
    for (const std::string& name : shared) key[name] = row[name];
    const Json* found = checkpoint.Find(key);
    if (found == nullptr) continue;
    pairs.own.push_back(row[column].get<double>());
    pairs.partners.push_back((*found)[column].get<double>());
  }
  return pairs;
}

std::string Verdict(const MeanInterval& difference, bool less_is_better) {
  if (difference.holds(0)) return "tie";
  return (difference.mean < 0) == less_is_better ? "better" : "worse";
}

}  // namespace tokenbutler
