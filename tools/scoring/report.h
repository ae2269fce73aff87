#pragma once

#include <string>
#include <vector>

#include "base/compute_pool.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {

// The outcome of one measurement: facts that hold for the whole run (machine, threads, measured
// bandwidth) and one row per case. Written as JSON for scripts and as a table for people.
class Report {
 public:
  using Json = nlohmann::ordered_json;

  // Records the machine, the threads of `pool` and the kernels' target.
  Report(std::string benchmark, const ComputePool& pool);

  void SetFact(const std::string& name, Json value) { facts_[name] = std::move(value); }
  bool has_fact(const std::string& name) const { return name == "rows" || facts_.contains(name); }
  // `row`'s keys become the table's columns; every row has the same keys.
  void AddRow(Json row) { rows_.push_back(std::move(row)); }

  std::string Table() const;
  // INTERNAL naming the file when it cannot be written.
  absl::Status WriteJson(const std::string& path) const;

 private:
  Json facts_;
  std::vector<Json> rows_;
};

// The middle value (the mean of the two middle ones). REQUIRES: not empty.
double Median(std::vector<double> values);

}  // namespace tokenbutler
