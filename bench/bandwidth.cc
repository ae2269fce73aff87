#include <algorithm>

#include "bench/benchmarks.h"
#include "bench/cold_memory.h"
#include "fmt/format.h"

namespace tokenbutler {

absl::StatusOr<Report> RunBandwidth(const BandwidthOptions& options, ComputePool& pool) {
  Report report("bandwidth", pool);
  for (const int num_threads : {1, pool.num_threads()}) {
    if (num_threads == 1 && pool.num_threads() == 1) continue;
    ComputePool one_thread(1);
    ASSIGN_OR_RETURN(BandwidthProbe probe,
                     BandwidthProbe::Create(num_threads == 1 ? one_thread : pool));
    std::vector<double> speeds;
    for (int i = 0; i < options.repeats; ++i) {
      fmt::print(stderr, "\rbandwidth: {} threads, pass {}/{} ", num_threads, i + 1,
                 options.repeats);
      speeds.push_back(probe.Measure() / 1e9);
    }
    report.AddRow({{"threads", num_threads},
                   {"read_bytes", kColdBytes},
                   {"median_gb_s", Median(speeds)},
                   {"min_gb_s", *std::min_element(speeds.begin(), speeds.end())},
                   {"max_gb_s", *std::max_element(speeds.begin(), speeds.end())}});
  }
  fmt::print(stderr, "\n");
  return report;
}

}  // namespace tokenbutler
