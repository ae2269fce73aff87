#include "base/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace tokenbutler {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The fields of /proc/self/stat after the command's name, which may itself hold spaces: the first
// of them is field 3 of proc(5).
std::vector<std::string_view> StatFields(std::string_view stat) {
  std::vector<std::string_view> fields;
  size_t at = stat.rfind(')');
  while (at != std::string_view::npos && at + 1 < stat.size()) {
    const size_t begin = at + 1;
    at = stat.find(' ', begin);
    const std::string_view field = stat.substr(begin, at - begin);
    if (!field.empty()) fields.push_back(field);
  }
  return fields;
}

// Field `number` of proc(5).
std::optional<double> Field(const std::vector<std::string_view>& fields, size_t number) {
  const size_t index = number - 3;
  int64_t value = 0;
  if (index >= fields.size()) return std::nullopt;
  const std::string_view text = fields[index];
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) {
    return std::nullopt;
  }
  return static_cast<double>(value);
}

std::optional<double> BootTimeSeconds() {
  const std::string stat = ReadFile("/proc/stat");
  constexpr std::string_view kKey = "\nbtime ";
  const size_t at = stat.find(kKey);
  int64_t value = 0;
  if (at == std::string::npos) return std::nullopt;
  const char* begin = stat.data() + at + kKey.size();
  if (std::from_chars(begin, stat.data() + stat.size(), value).ec != std::errc()) {
    return std::nullopt;
  }
  return static_cast<double>(value);
}

std::optional<double> CountOpenFiles() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return std::nullopt;
  int count = -3;  // ".", ".." and the directory's own descriptor
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

std::optional<double> MaxOpenFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::nullopt;
  return static_cast<double>(limit.rlim_cur);
}

std::optional<double> Scaled(std::optional<double> value, double factor) {
  if (value) *value *= factor;
  return value;
}

void Add(std::vector<MetricFamily>& families, const char* name, const char* help, MetricType type,
         std::optional<double> value) {
  if (!value) return;
  MetricFamily family{.name = name, .help = help, .type = type, .metric = {}};
  prometheus::ClientMetric metric;
  if (type == MetricType::Counter) {
    metric.counter.value = *value;
  } else {
    metric.gauge.value = *value;
  }
  family.metric.push_back(metric);
  families.push_back(std::move(family));
}

}  // namespace

std::vector<MetricFamily> ProcessMetrics::Collect() const {
  const std::string stat = ReadFile("/proc/self/stat");
  const std::vector<std::string_view> fields = StatFields(stat);
  const double seconds_per_tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  const double page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));

  std::optional<double> cpu_ticks = Field(fields, 14);
  if (const auto system = Field(fields, 15); cpu_ticks && system) *cpu_ticks += *system;
  std::optional<double> start = Scaled(Field(fields, 22), seconds_per_tick);
  if (const auto boot = BootTimeSeconds(); start && boot) *start += *boot;

  std::vector<MetricFamily> families;
  Add(families, "process_cpu_seconds_total", "User and system CPU time spent.", MetricType::Counter,
      Scaled(cpu_ticks, seconds_per_tick));
  Add(families, "process_resident_memory_bytes", "Resident memory.", MetricType::Gauge,
      Scaled(Field(fields, 24), page_bytes));
  Add(families, "process_virtual_memory_bytes", "Virtual memory.", MetricType::Gauge,
      Field(fields, 23));
  Add(families, "process_open_fds", "Open file descriptors.", MetricType::Gauge, CountOpenFiles());
  Add(families, "process_max_fds", "File descriptors that may be open.", MetricType::Gauge,
      MaxOpenFiles());
  Add(families, "process_threads", "Threads.", MetricType::Gauge, Field(fields, 20));
  Add(families, "process_start_time_seconds", "When the process started, since the Unix epoch.",
      MetricType::Gauge, start);
  return families;
}

}  // namespace tokenbutler
