#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/benchmarks.h"
#include "bench/cold_memory.h"
#include "bench/decode_cases.h"
#include "bench/random_kv.h"
#include "engine/selection/policies.h"
#include "fmt/format.h"
#include "tools/scoring/checkpoint.h"
#include "tools/scoring/measured_model.h"
#include "tools/scoring/step_bytes.h"

namespace tokenbutler {
namespace {

using Json = Report::Json;

// Blocks for the deepest trunk, and for one case's branch with its state and one dense branch.
int NumBlocks(const DecodeCase& c, const DecodeOptions& o, const SelectionResources& resources) {
  const KvLayout& layout = resources.layout;
  const int own = layout.blocks_for(c.NumSteps(o)) + 1;
  const int depth = layout.blocks_for(c.depth);
  const int state = StateLayoutFor(c.params, resources).blocks_for(depth + own);
  return depth + layout.blocks_for(512) + 2 * own + state;
}

double PercentileOf(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const size_t rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

double MeanOf(absl::Span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

class DecodeBenchmark {
 public:
  DecodeBenchmark(const DecodeOptions& options, MeasuredModel& model, BandwidthProbe& probe)
      : options_(options), model_(model), probe_(probe), queries_(model.config()) {}

  // Fills the cache to the deepest of the cases.
  absl::Status Fill(int depth) {
    fmt::print(stderr, "decode: filling {} tokens\n", depth);
    ASSIGN_OR_RETURN(trunk_, MeasuredSequence::Create(model_, {}, depth));
    return AppendRandomRows(model_, depth, trunk_.get());
  }

  absl::StatusOr<Json> Measure(const DecodeCase& c) {
    const int room = c.depth + c.NumSteps(options_);
    const double start = NowSeconds();
    ASSIGN_OR_RETURN(
        const auto sequence,
        MeasuredSequence::Branch(model_, c.params, *trunk_, c.depth, room, queries_.layers()));
    const double adopt_seconds = NowSeconds() - start;
    ASSIGN_OR_RETURN(const auto dense,
                     MeasuredSequence::Branch(model_, {}, *trunk_, c.depth, room));
    for (int i = 0; i < c.params.prediction_interval; ++i) {
      RETURN_IF_ERROR(sequence->Decode(AnyToken()));
    }
    const AttentionStats before = sequence->stats();
    Samples samples;
    const auto out_of_time = [&] { return NowSeconds() - start > options_.max_seconds_per_case; };
    for (int r = 0; r < options_.repeats && (r == 0 || !out_of_time()); ++r) {
      RETURN_IF_ERROR(Repeat(c, out_of_time() ? 1 : options_.steps, *sequence, *dense, &samples));
    }
    const AttentionStats after = sequence->stats();
    const int num_steps = c.StepsPerRepeat(out_of_time() ? 1 : options_.steps);
    const double back_to_back = NowSeconds();
    for (int i = 0; i < num_steps; ++i) RETURN_IF_ERROR(sequence->Decode(AnyToken()));
    samples.back_to_back_ms = (NowSeconds() - back_to_back) / num_steps * 1e3;
    samples.adopt_seconds = adopt_seconds;
    samples.case_seconds = NowSeconds() - start;
    return RowOf(c, samples, before, after);
  }

 private:
  struct Samples {
    std::vector<double> step_ms;   // every cold step
    std::vector<double> mean_ms;   // of each repeat
    std::vector<double> dense_ms;  // one cold dense step a repeat
    std::vector<double> read_b_s, gather_b_s;
    double back_to_back_ms = 0;
    double adopt_seconds = 0;
    double case_seconds = 0;
  };

  int32_t AnyToken() { return static_cast<int32_t>(random_() % model_.config().vocab_size); }

  // Empties the caches, then one step; milliseconds.
  absl::StatusOr<double> ColdStep(const DecodeCase& c, MeasuredSequence& sequence,
                                  Samples* samples) {
    samples->read_b_s.push_back(probe_.Measure());
    // A budget of more than half of the context is as good as reading it all.
    const int spacing = std::max(1, c.depth / c.params.token_budget);
    const size_t row_bytes = (model_.layout().row_bytes() + 63) / 64 * 64;
    samples->gather_b_s.push_back(
        probe_.MeasureGather(row_bytes, std::min(c.params.token_budget, c.depth), spacing));
    const double start = NowSeconds();
    RETURN_IF_ERROR(sequence.Decode(AnyToken()));
    return (NowSeconds() - start) * 1e3;
  }

  absl::Status Repeat(const DecodeCase& c, int steps_at_least, MeasuredSequence& sequence,
                      MeasuredSequence& dense, Samples* samples) {
    ASSIGN_OR_RETURN(samples->dense_ms.emplace_back(), ColdStep(c, dense, samples));
    std::vector<double> steps;
    for (int i = c.StepsPerRepeat(steps_at_least); i > 0; --i) {
      ASSIGN_OR_RETURN(steps.emplace_back(), ColdStep(c, sequence, samples));
    }
    samples->mean_ms.push_back(MeanOf(steps));
    samples->step_ms.insert(samples->step_ms.end(), steps.begin(), steps.end());
    return absl::OkStatus();
  }

  Json RowOf(const DecodeCase& c, const Samples& samples, const AttentionStats& before,
             const AttentionStats& after) const {
    const bool dense = !c.params.sparse();
    const double attended =
        dense ? c.depth
              : static_cast<double>(after.attended_tokens - before.attended_tokens) /
                    static_cast<double>(after.attended_lists - before.attended_lists);
    const double scored =
        dense ? 1
              : static_cast<double>(after.scored_tokens - before.scored_tokens) /
                    static_cast<double>(after.context_tokens - before.context_tokens);
    const StepBytes bytes = BytesOfStep({.params = c.params,
                                         .hidden_size = model_.config().hidden_size,
                                         .kv = model_.layout(),
                                         .state = model_.runner().state_layout(c.params),
                                         .context_len = c.depth,
                                         .attended_tokens = attended});
    const double weights = static_cast<double>(model_.weight_bytes());
    const double read = Median(samples.read_b_s), gather = Median(samples.gather_b_s);
    const double floor_ms = bytes.FloorMs(weights, read, gather);
    const double ms = Median(samples.mean_ms);
    std::vector<double> speedups;
    speedups.reserve(samples.mean_ms.size());
    for (size_t r = 0; r < samples.mean_ms.size(); ++r) {
      speedups.push_back(samples.dense_ms[r] / samples.mean_ms[r]);
    }
    const double choosing_ms = absl::ToDoubleMilliseconds(after.predictor - before.predictor) /
                               static_cast<double>(samples.step_ms.size());
    return {{"depth", c.depth},
            {"setting", c.setting.label},
            {"token_budget", dense ? c.depth : c.params.token_budget},
            {"interval", c.params.prediction_interval},
            {"candidates", c.params.candidates},
            {"scan_fraction", c.params.scan_fraction},
            {"scored_share", scored},
            {"ms_per_token", ms},
            {"p99_step_ms", PercentileOf(samples.step_ms, 0.99)},
            {"back_to_back_ms", samples.back_to_back_ms},
            {"choosing_ms", choosing_ms},
            {"dense_ms", Median(samples.dense_ms)},
            {"speedup", dense ? 1.0 : Median(speedups)},
            {"floor_ms", floor_ms},
            {"over_floor", ms / floor_ms},
            {"attended_tokens", attended},
            {"read_mb", (weights + bytes.streamed + bytes.gathered) / 1e6},
            {"read_gb_s", read / 1e9},
            {"gather_gb_s", gather / 1e9},
            {"prepare_s", dense ? 0.0 : samples.adopt_seconds},
            {"steps", samples.step_ms.size()},
            {"case_s", samples.case_seconds}};
  }

  const DecodeOptions& options_;
  MeasuredModel& model_;
  BandwidthProbe& probe_;
  const RandomQueries queries_;
  std::unique_ptr<MeasuredSequence> trunk_;
  std::mt19937 random_{1};
};

// Leaves out the depths for which there is no memory; blocks for the others.
int BlocksThatFit(const DecodeOptions& o, const SelectionResources& resources,
                  std::vector<DecodeCase>* cases, int* deepest_left_out) {
  const int64_t available = AvailableKvBytes();
  while (true) {
    int num_blocks = 0, depth = 0;
    for (const DecodeCase& c : *cases) {
      num_blocks = std::max(num_blocks, NumBlocks(c, o, resources));
      depth = std::max(depth, c.depth);
    }
    if (int64_t{num_blocks} * static_cast<int64_t>(resources.layout.block_bytes()) <= available ||
        (*cases)[0].depth == depth) {
      return num_blocks;
    }
    fmt::print(stderr, "decode: no memory for {} tokens, left out\n", depth);
    *deepest_left_out = std::max(*deepest_left_out, depth);
    std::erase_if(*cases, [depth](const DecodeCase& c) { return c.depth == depth; });
  }
}

// Whether a row of the same setting at a lower depth took longer than a row may: deeper ones only
// take longer.
bool WasTooSlow(const Checkpoint& rows, const DecodeCase& c, double max_seconds) {
  return std::any_of(rows.rows().begin(), rows.rows().end(), [&](const Json& row) {
    return row["setting"] == c.setting.label && row["depth"] < c.depth &&
           row["token_budget"] == c.params.token_budget && row["case_s"] > max_seconds;
  });
}

// For whoever draws them.
Json SweepsAsJson(const std::vector<DecodeSweep>& sweeps) {
  Json all = Json::array();
  for (const DecodeSweep& sweep : sweeps) {
    all.push_back({{"name", sweep.name},
                   {"settings", sweep.settings},
                   {"token_budgets", sweep.token_budgets},
                   {"depths", sweep.depths}});
  }
  return all;
}

}  // namespace

absl::StatusOr<Report> RunDecode(const DecodeOptions& o, ComputePool& pool) {
  const std::vector<DecodeSweep> sweeps =
      o.page ? PageSweeps(o)
             : std::vector<DecodeSweep>{
                   {"depth", o.choice.settings, o.choice.token_budgets, o.depths}};
  ASSIGN_OR_RETURN(std::vector<DecodeCase> cases, DecodeCasesOf(sweeps, o));
  if (cases.empty()) return InvalidArgumentError("nothing to measure");
  int left_out = 0, most_steps = 0;
  for (const DecodeCase& c : cases) most_steps = std::max(most_steps, c.NumSteps(o));
  MeasuredModel::Options setup;
  setup.model = o.model;
  setup.dtype = o.dtype;
  setup.kv_dtype = o.kv_dtype;
  setup.context_len = cases.back().depth + most_steps;
  setup.num_blocks = [&](const SelectionResources& resources) {
    return BlocksThatFit(o, resources, &cases, &left_out);
  };
  setup.predictor = o.choice.predictor;
  setup.runner.max_num_seqs = 1;
  ASSIGN_OR_RETURN(const auto model, MeasuredModel::Create(setup, pool));
  ASSIGN_OR_RETURN(BandwidthProbe probe, BandwidthProbe::Create(pool));
  Report report("decode", pool);
  const std::string name = std::filesystem::path(o.model).filename().string();
  const std::string dtype = model->dtypes();
  ASSIGN_OR_RETURN(Checkpoint rows,
                   Checkpoint::Open(o.choice.resume, {{"benchmark", "decode"},
                                                      {"model", name},
                                                      {"dtype", dtype},
                                                      {"threads", pool.num_threads()}}));
  DecodeBenchmark benchmark(o, *model, probe);
  RETURN_IF_ERROR(benchmark.Fill(cases.back().depth));
  std::vector<std::string> left_out_cases;
  int number = 0;
  for (const DecodeCase& c : cases) {
    fmt::print(stderr, "decode: {}/{}: depth {}, {}, budget {}\n", ++number, cases.size(), c.depth,
               c.setting.label, c.params.token_budget);
    if (rows.Find(c.Key()) != nullptr) continue;
    std::string why_not(model->runner().CheckAttention(c.params).message());
    if (WasTooSlow(rows, c, o.max_seconds_per_case)) why_not = "too slow at a lower depth";
    if (!why_not.empty()) {
      left_out_cases.push_back(fmt::format("{} at {}: {}", c.setting.label, c.depth, why_not));
      fmt::print(stderr, "decode: left out: {}\n", left_out_cases.back());
      continue;
    }
    ASSIGN_OR_RETURN(Json row, benchmark.Measure(c));
    RETURN_IF_ERROR(rows.Add(std::move(row)));
  }

  report.SetFact("model", name);
  report.SetFact("dtype", dtype);
  report.SetFact("weight_bytes_per_step", model->weight_bytes());
  report.SetFact("kv_bytes_per_token", model->layout().token_bytes());
  report.SetFact("rope_scaling", model->rope_scaling());
  report.SetFact("sink_tokens", o.choice.sink_tokens);
  report.SetFact("local_window", o.choice.local_window);
  report.SetFact("token_budget", o.choice.token_budgets[0]);
  report.SetFact("sweeps", SweepsAsJson(sweeps));
  if (left_out > 0) report.SetFact("no_memory_for_depth", left_out);
  if (!left_out_cases.empty()) report.SetFact("left_out", left_out_cases);
  for (const Json& row : rows.rows()) report.AddRow(row);
  return report;
}

}  // namespace tokenbutler
