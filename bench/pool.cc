#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "bench/benchmarks.h"
#include "bench/cold_memory.h"
#include "engine/kernels/linear.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

// The linear layers of one decode step of SmolLM2-135M: {in_features, out_features} of a layer.
constexpr std::pair<int, int> kLayer[] = {{576, 960}, {576, 576}, {576, 3072}, {1536, 576}};
constexpr int kNumLayers = 30;

// Runs the layers on weights that were last read kColdBytes ago; `at` is where the next ones lie.
double StepSeconds(const Buffer& weights, const std::vector<float>& x, std::vector<float>* y,
                   size_t* at, ComputePool& pool) {
  const double start = NowSeconds();
  for (int layer = 0; layer < kNumLayers; ++layer) {
    for (const auto& [in, out] : kLayer) {
      const size_t bytes = static_cast<size_t>(in) * out * sizeof(BF16);
      if (*at + bytes > weights.size()) *at = 0;
      Linear({.x = x.data(),
              .weight = weights.data() + *at,
              .y = y->data(),
              .num_rows = 1,
              .in_features = in,
              .out_features = out},
             pool);
      *at += bytes;
    }
  }
  return NowSeconds() - start;
}

}  // namespace

absl::StatusOr<Report> RunPool(const PoolOptions& options, ComputePool& pool) {
  ASSIGN_OR_RETURN(Buffer weights, Buffer::Allocate(kColdBytes, MemoryKind::kHugePage));
  std::memset(weights.data(), 0x3c, weights.size());  // bf16 0.0115
  const std::vector<float> x(1536, 1.0f);
  std::vector<float> y(3072);
  size_t at = 0;
  struct Mode {
    const char* name;
    bool spin;
    std::vector<double> ms;
  } modes[] = {{"sleep", false, {}}, {"step scope", true, {}}};
  for (int i = 0; i < options.repeats; ++i) {
    fmt::print(stderr, "\rpool: pass {}/{} ", i + 1, options.repeats);
    for (Mode& mode : modes) {
      std::optional<ComputePool::StepScope> step;
      if (mode.spin) step.emplace(pool);
      mode.ms.push_back(StepSeconds(weights, x, &y, &at, pool) * 1e3);
    }
  }
  fmt::print(stderr, "\n");
  Report report("pool", pool);
  for (Mode& mode : modes) {
    std::sort(mode.ms.begin(), mode.ms.end());
    report.AddRow({{"workers_wait_by", mode.name},
                   {"sections", kNumLayers * std::size(kLayer)},
                   {"min_ms", mode.ms.front()},
                   {"p10_ms", mode.ms[mode.ms.size() / 10]},
                   {"median_ms", Median(mode.ms)}});
  }
  return report;
}

}  // namespace tokenbutler
