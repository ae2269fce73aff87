#include "engine/kernels/linear.h"

#include <cstring>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "bench/benchmarks.h"
#include "bench/cold_memory.h"
#include "fmt/format.h"

namespace tokenbutler {
namespace {

struct Shape {
  std::string name;
  int in_features, out_features;
};
struct DTypes {
  DType x, weight;
};

// bf16 or float32 values of ordinary size: the bytes of small bf16 numbers read as either type.
void FillWeights(Buffer* weights) {
  uint16_t* words = weights->as<uint16_t>();
  for (size_t i = 0; i < weights->size() / 2; ++i) {
    words[i] = static_cast<uint16_t>(0x3c00 + (i * 2654435761u >> 8 & 0x7f));
  }
}

// Median seconds of one product, each time with weights that were last read kColdBytes ago.
double MeasureLinear(const LinearParams& shape, const Buffer& weights, int repeats,
                     ComputePool& pool) {
  const size_t matrix_bytes =
      static_cast<size_t>(shape.in_features) * shape.out_features * DTypeBytes(shape.weight_dtype);
  const int num_matrices = static_cast<int>(weights.size() / matrix_bytes);
  std::vector<double> seconds;
  ComputePool::StepScope step(pool);
  for (int r = 0; r < repeats; ++r) {
    const double start = NowSeconds();
    for (int m = 0; m < num_matrices; ++m) {
      LinearParams params = shape;
      params.weight = weights.data() + m * matrix_bytes;
      Linear(params, pool);
    }
    seconds.push_back((NowSeconds() - start) / num_matrices);
  }
  return Median(seconds);
}

}  // namespace

absl::StatusOr<Report> RunLinear(const LinearOptions& o, ComputePool& pool) {
  const Shape shapes[] = {{"qkv", o.hidden_size, o.qkv_size},
                          {"o", o.hidden_size, o.hidden_size},
                          {"gate_up", o.hidden_size, 2 * o.intermediate_size},
                          {"down", o.intermediate_size, o.hidden_size},
                          {"lm_head", o.hidden_size, o.vocab_size}};
  const DTypes dtypes[] = {
      {DType::kF32, DType::kBF16}, {DType::kBF16, DType::kBF16}, {DType::kF32, DType::kF32}};

  ASSIGN_OR_RETURN(BandwidthProbe probe, BandwidthProbe::Create(pool));
  ASSIGN_OR_RETURN(Buffer weights, Buffer::Allocate(kColdBytes, MemoryKind::kHugePage));
  FillWeights(&weights);
  Report report("linear", pool);
  for (const DTypes& types : dtypes) {
    for (const Shape& shape : shapes) {
      for (const int rows : o.rows) {
        fmt::print(stderr, "\rlinear: {:<8} {} rows, x {} ", shape.name, rows, DTypeName(types.x));
        std::vector<float> x(static_cast<size_t>(rows) * shape.in_features, 1.0f);
        std::vector<BF16> x_bf16(x.size(), ToBF16(1.0f));
        std::vector<float> y(static_cast<size_t>(rows) * shape.out_features);
        const LinearParams params{
            .x = types.x == DType::kF32 ? static_cast<const void*>(x.data()) : x_bf16.data(),
            .x_dtype = types.x,
            .weight_dtype = types.weight,
            .y = y.data(),
            .num_rows = rows,
            .in_features = shape.in_features,
            .out_features = shape.out_features};
        const double bandwidth = probe.Measure();
        const double seconds = MeasureLinear(params, weights, o.repeats, pool);
        const double bytes = static_cast<double>(shape.in_features) * shape.out_features *
                             static_cast<double>(DTypeBytes(types.weight));
        report.AddRow({{"shape", shape.name},
                       {"x", DTypeName(types.x)},
                       {"weight", DTypeName(types.weight)},
                       {"rows", rows},
                       {"us", seconds * 1e6},
                       {"gb_s", bytes / seconds / 1e9},
                       {"probe_gb_s", bandwidth / 1e9},
                       {"time_over_read", seconds * bandwidth / bytes}});
      }
    }
  }
  fmt::print(stderr, "\n");
  return report;
}

}  // namespace tokenbutler
