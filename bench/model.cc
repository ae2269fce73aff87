#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/cold_memory.h"
#include "engine/step_runner.h"
#include "engine/weights/loader.h"
#include "fmt/format.h"
#include "offload/kv_store.h"
#include "tools/scoring/measured_model.h"

namespace tokenbutler {
namespace {

// One sequence that is prefilled and decoded over and over in the same blocks.
class ModelBenchmark {
 public:
  static absl::StatusOr<std::unique_ptr<ModelBenchmark>> Create(const ModelOptions& options,
                                                                ComputePool& pool) {
    auto benchmark = std::unique_ptr<ModelBenchmark>(new ModelBenchmark(options));
    RETURN_IF_ERROR(benchmark->Load(pool));
    return benchmark;
  }

  // Prefills `num_tokens` tokens from position 0; seconds.
  absl::StatusOr<double> Prefill(int num_tokens) {
    const double start = NowSeconds();
    for (int at = 0; at < num_tokens; at += options_.prefill_chunk_tokens) {
      const int count = std::min(options_.prefill_chunk_tokens, num_tokens - at);
      StepPlan plan;
      plan.prefill_chunks.push_back(
          {.block_table = &blocks_,
           .token_ids = absl::MakeConstSpan(token_ids_).subspan(at, count),
           .start_position = at,
           .logits = at + count == num_tokens ? LogitsWanted::kLast : LogitsWanted::kNone});
      RETURN_IF_ERROR(runner_->Run(plan));
    }
    return NowSeconds() - start;
  }

  // One decode step at `position`; seconds.
  absl::StatusOr<double> Decode(int position) {
    StepPlan plan;
    plan.decode.push_back({.block_table = &blocks_,
                           .token_ids = absl::MakeConstSpan(token_ids_).subspan(position, 1),
                           .start_position = position});
    const double start = NowSeconds();
    RETURN_IF_ERROR(runner_->Run(plan));
    return NowSeconds() - start;
  }

  // Bytes that a decode step at `position` reads at least: weights, and cached keys and values of
  // the tokens each layer attends to.
  double BytesRead(int position) const {
    const KvLayout& layout = kv_store_->layout();
    double bytes = static_cast<double>(weight_bytes_);
    for (const int window : runner_->config().sliding_window) {
      const int tokens = window == 0 ? position + 1 : std::min(window, position + 1);
      bytes += tokens * static_cast<double>(layout.layer_bytes()) / layout.block_size;
    }
    return bytes;
  }

  // Where decoding at `depth` begins: there, or as far before the end of the model's context as the
  // decoded tokens need.
  int StartOfDecode(int depth) const {
    return std::min(depth, max_position_ - options_.decode_tokens);
  }

  const StepRunner& runner() const { return *runner_; }
  size_t weight_bytes() const { return weight_bytes_; }

 private:
  explicit ModelBenchmark(const ModelOptions& options) : options_(options) {}

  absl::Status Load(ComputePool& pool) {
    LoadOptions load;
    load.num_threads = pool.num_threads();
    if (!options_.dtype.empty()) {
      load.compute_dtype = options_.dtype == "float32" ? DType::kF32 : DType::kBF16;
    }
    fmt::print(stderr, "model: loading {}\n", options_.model);
    ASSIGN_OR_RETURN(LoadedModel model, LoadModel(options_.model, load));
    weight_bytes_ = WeightBytesPerStep(model.weights);
    max_position_ = model.config.max_position;
    if (options_.prefill_tokens > max_position_ || options_.decode_tokens > max_position_) {
      return InvalidArgumentError("prefill_tokens is {} and decode_tokens {}, must be at most {}",
                                  options_.prefill_tokens, options_.decode_tokens, max_position_);
    }
    int num_tokens = options_.prefill_tokens;
    for (const int depth : options_.depths) {
      if (depth > max_position_) {
        return InvalidArgumentError("a depth is {}, must be at most {}: the model's context", depth,
                                    max_position_);
      }
      num_tokens = std::max(num_tokens, StartOfDecode(depth) + options_.decode_tokens);
    }
    const KvLayout layout = KvLayoutFor(model.config, model.compute_dtype);
    const int num_blocks = layout.blocks_for(num_tokens);
    // One block more than needed: the store may align blocks.
    ASSIGN_OR_RETURN(
        kv_store_,
        KvStore::Create(layout, {.capacity_bytes = static_cast<int64_t>(layout.block_bytes() + 64) *
                                                   (num_blocks + 1),
                                 .prefault = true}));
    for (int b = 0; b < num_blocks; ++b) blocks_.blocks.push_back(b);
    // Speed does not depend on the text: any ids will do, the same in each run.
    std::mt19937 random(1);
    std::uniform_int_distribution<int32_t> any_id(0, model.config.vocab_size - 1);
    for (int i = 0; i < num_tokens; ++i) token_ids_.push_back(any_id(random));
    ASSIGN_OR_RETURN(
        runner_,
        StepRunner::Create(std::move(model.config), std::move(model.weights), kv_store_.get(),
                           &pool, {.prefill_chunk_tokens = options_.prefill_chunk_tokens}));
    return absl::OkStatus();
  }

  const ModelOptions options_;
  std::unique_ptr<KvStore> kv_store_;
  std::unique_ptr<StepRunner> runner_;
  size_t weight_bytes_ = 0;
  int max_position_ = 0;
  BlockTable blocks_;
  std::vector<int32_t> token_ids_;
};

// What was measured at one depth.
struct DepthSamples {
  std::vector<double> prefill_tokens_per_s;
  std::vector<double> decode_ms;       // back to back, as a server runs steps
  std::vector<double> cold_decode_ms;  // each after the caches were emptied
  std::vector<double> gb_s;            // read bandwidth just before a cold step
  std::vector<double> cold_over_read;  // cold step over reading its bytes at that bandwidth
};

absl::Status MeasureDepth(int depth, const ModelOptions& o, ModelBenchmark& model,
                          BandwidthProbe& probe, DepthSamples* samples) {
  const int start = model.StartOfDecode(depth);
  const int prompt = std::max(start, o.prefill_tokens);
  ASSIGN_OR_RETURN(const double prefill, model.Prefill(prompt));
  samples->prefill_tokens_per_s.push_back(prompt / prefill);
  for (int i = 0; i < o.decode_tokens; ++i) {
    ASSIGN_OR_RETURN(const double seconds, model.Decode(start + i));
    samples->decode_ms.push_back(seconds * 1e3);
  }
  for (int i = 0; i < o.decode_tokens; ++i) {
    const double bandwidth = probe.Measure();
    ASSIGN_OR_RETURN(const double seconds, model.Decode(start + i));
    samples->cold_decode_ms.push_back(seconds * 1e3);
    samples->gb_s.push_back(bandwidth / 1e9);
    samples->cold_over_read.push_back(seconds * bandwidth / model.BytesRead(start + i));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Report> RunModel(const ModelOptions& o, ComputePool& pool) {
  ASSIGN_OR_RETURN(auto model, ModelBenchmark::Create(o, pool));
  ASSIGN_OR_RETURN(BandwidthProbe probe, BandwidthProbe::Create(pool));
  std::vector<DepthSamples> samples(o.depths.size());
  // The first run of everything allocates and warms up; its numbers are dropped.
  DepthSamples warm_up;
  RETURN_IF_ERROR(MeasureDepth(0, o, *model, probe, &warm_up));
  for (int r = 0; r < o.repeats; ++r) {
    for (size_t d = 0; d < o.depths.size(); ++d) {
      fmt::print(stderr, "\rmodel: pass {}/{}, depth {} ", r + 1, o.repeats, o.depths[d]);
      RETURN_IF_ERROR(MeasureDepth(o.depths[d], o, *model, probe, &samples[d]));
    }
  }
  fmt::print(stderr, "\n");

  Report report("model", pool);
  report.SetFact("model", o.model);
  report.SetFact("dtype", DTypeName(model->runner().compute_dtype()));
  report.SetFact("weight_bytes_per_step", model->weight_bytes());
  report.SetFact("prefill_chunk_tokens", o.prefill_chunk_tokens);
  for (size_t d = 0; d < o.depths.size(); ++d) {
    const double bandwidth = Median(samples[d].gb_s);
    const int start = model->StartOfDecode(o.depths[d]);
    const double bytes = model->BytesRead(start + o.decode_tokens / 2);
    const double floor_ms = bytes / bandwidth / 1e6;
    const double decode_ms = Median(samples[d].decode_ms);
    report.AddRow({{"depth", o.depths[d]},
                   {"prompt_tokens", std::max(start, o.prefill_tokens)},
                   {"prefill_tokens_s", Median(samples[d].prefill_tokens_per_s)},
                   {"decode_ms", decode_ms},
                   {"cold_decode_ms", Median(samples[d].cold_decode_ms)},
                   {"read_bytes", bytes},
                   {"read_gb_s", bandwidth},
                   {"read_ms", floor_ms},
                   {"decode_over_read", decode_ms / floor_ms},
                   {"cold_over_read", Median(samples[d].cold_over_read)}});
  }
  return report;
}

}  // namespace tokenbutler
