#include "tools/scoring/report.h"

#include <algorithm>
#include <fstream>

#include "engine/kernels/kernel_target.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

std::string CpuModelName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string Cell(const Report::Json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    const int digits = number >= 1000 ? 0 : number >= 10 ? 1 : number >= 0.1 ? 3 : 5;
    return fmt::format("{:.{}f}", number, digits);
  }
  return value.dump();
}

}  // namespace

Report::Report(std::string benchmark, const ComputePool& pool) {
  facts_["benchmark"] = std::move(benchmark);
  facts_["cpu"] = CpuModelName();
  facts_["threads"] = pool.num_threads();
  facts_["kernel_target"] = std::string(CpuTargetName(KernelTarget()));
}

std::string Report::Table() const {
  std::string text;
  for (const auto& [name, value] : facts_.items()) {
    if (value.is_structured()) continue;  // for scripts
    text += fmt::format("{}: {}\n", name, Cell(value));
  }
  if (rows_.empty()) return text;

  std::vector<std::vector<std::string>> lines(1);
  for (const auto& item : rows_[0].items()) lines[0].push_back(item.key());
  for (const Json& row : rows_) {
    std::vector<std::string>& line = lines.emplace_back();
    for (const std::string& column : lines[0]) line.push_back(Cell(row.value(column, Json())));
  }
  std::vector<size_t> widths(lines[0].size(), 0);
  for (const auto& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  for (const auto& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) {
      text += fmt::format("{:>{}}{}", line[c], widths[c], c + 1 < line.size() ? "  " : "\n");
    }
  }
  return text;
}

absl::Status Report::WriteJson(const std::string& path) const {
  Json json = facts_;
  json["rows"] = rows_;
  std::ofstream out(path);
  // What came from outside, names of files and facts, need not be UTF-8.
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  out.flush();
  if (!out) return InternalError("cannot write {}", path);
  return absl::OkStatus();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace tokenbutler
