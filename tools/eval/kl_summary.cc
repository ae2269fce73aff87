#include "tools/eval/kl_summary.h"

#include <algorithm>
#include <cmath>

#include "tools/eval/row_columns.h"

namespace tokenbutler {
namespace {

using Json = Checkpoint::Json;

void AddComparisonWithExact(const Checkpoint& checkpoint, const std::vector<Json>& rows,
                            Json* summary) {
  // Those with the same budget.
  const PairedColumn pairs = PairUp(checkpoint, rows, {"document", "fingerprint", "token_budget"},
                                    {{"setting", "exact"}}, "mean_kl");
  const bool is_comparable =
      !pairs.partners.empty() &&
      std::all_of(pairs.partners.begin(), pairs.partners.end(), [](double kl) { return kl > 0; });
  const MeanInterval ratio =
      is_comparable ? BootstrapRatio(pairs.own, pairs.partners) : MeanInterval{};
  Json& s = *summary;
  s["over_exact"] = is_comparable ? Json(ratio.mean) : Json();
  s["over_exact_low"] = is_comparable ? Json(ratio.low) : Json();
  s["over_exact_high"] = is_comparable ? Json(ratio.high) : Json();
  s["vs_exact"] =
      is_comparable
          ? Json(Verdict(BootstrapDifference(pairs.own, pairs.partners), /*less_is_better=*/true))
          : Json();
}

void AddComparisonWithDense(const std::vector<Json>& rows, Json* summary) {
  const MeanInterval nll = BootstrapDifference(ColumnOf(rows, "nll"), ColumnOf(rows, "dense_nll"));
  Json& s = *summary;
  s["perplexity_ratio"] = std::exp(nll.mean);
  s["perplexity_low"] = std::exp(nll.low);
  s["perplexity_high"] = std::exp(nll.high);
  s["vs_dense"] = Verdict(nll, /*less_is_better=*/true);
}

}  // namespace

Json KlSummary(const Checkpoint& checkpoint, const TextJob& job, const std::vector<Json>& rows) {
  const MeanInterval kl = BootstrapMean(ColumnOf(rows, "mean_kl"));
  const MeanInterval top = BootstrapMean(ColumnOf(rows, "same_top"));
  Json summary = {{"setting", job.label},
                  {"token_budget", job.params.token_budget},
                  {"predictor", job.predictor.empty() ? Json() : Json(job.predictor)},
                  {"interval", job.params.prediction_interval},
                  {"candidates", job.params.candidates},
                  {"scan_fraction", job.params.scan_fraction},
                  {"neighbours", job.params.neighbours},
                  {"mean_kl", kl.mean},
                  {"kl_low", kl.low},
                  {"kl_high", kl.high}};
  AddComparisonWithExact(checkpoint, rows, &summary);
  summary["same_top"] = top.mean;
  summary["same_top_low"] = top.low;
  summary["same_top_high"] = top.high;
  AddComparisonWithDense(rows, &summary);
  for (const char* column :
       {"attended_tokens", "mass_recall", "overlap", "read_bytes", "moved_bytes", "hit_rate"}) {
    summary[column] = MeanOf(rows, column);
  }
  summary["documents"] = rows.size();
  return summary;
}

Json ProbeColumns(const AttentionProbes& probes) {
  Json columns = {{"count", Json::array()}, {"mass", Json::array()}, {"overlap", Json::array()}};
  const auto mean = [](double sum, int64_t count) {
    return count == 0 ? Json() : Json(std::round(1e4 * sum / static_cast<double>(count)) / 1e4);
  };
  for (const HeadProbes& head : probes.heads) {
    columns["count"].push_back(head.count);
    columns["mass"].push_back(mean(head.mass, head.count));
    columns["overlap"].push_back(mean(head.overlap, head.choices));
  }
  return columns;
}

Json MeanProbes(const std::vector<Json>& rows) {
  AttentionProbes sums;
  for (const Json& row : rows) {
    if (!row.contains("probes")) continue;
    const Json& probes = row["probes"];
    sums.heads.resize(std::max(sums.heads.size(), probes["count"].size()));
    for (size_t i = 0; i < probes["count"].size(); ++i) {
      HeadProbes& head = sums.heads[i];
      const int64_t count = probes["count"][i].get<int64_t>();
      if (!probes["mass"][i].is_null()) {
        head.count += count;
        head.mass += static_cast<double>(count) * probes["mass"][i].get<double>();
      }
      if (!probes["overlap"][i].is_null()) {
        head.choices += count;
        head.overlap += static_cast<double>(count) * probes["overlap"][i].get<double>();
      }
    }
  }
  return ProbeColumns(sums);
}

}  // namespace tokenbutler
