#include "tools/eval/kl_summary.h"

#include <cmath>
#include <string>

#include "tools/scoring/bootstrap.h"

namespace tokenbutler {
namespace {

using Json = Checkpoint::Json;

// The values of one column; rows without it are passed over.
std::vector<double> Column(const std::vector<Json>& rows, const std::string& name) {
  std::vector<double> values;
  for (const Json& row : rows) {
    if (row.contains(name) && !row[name].is_null()) values.push_back(row[name].get<double>());
  }
  return values;
}

Json MeanOf(const std::vector<Json>& rows, const std::string& name) {
  const std::vector<double> values = Column(rows, name);
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? Json() : Json(sum / static_cast<double>(values.size()));
}

std::string Verdict(const MeanInterval& difference, const char* less, const char* more) {
  if (difference.holds(0)) return "tie";
  return difference.mean < 0 ? less : more;
}

// Mean KL of the rows and of `exact` on the same texts, in the same order.
struct Pairs {
  std::vector<double> own, exact;
};

Pairs PairsWithExact(const Checkpoint& checkpoint, const std::vector<Json>& rows) {
  Pairs pairs;
  for (const Json& row : rows) {
    const Json* exact = checkpoint.Find({{"document", row["document"]},
                                         {"fingerprint", row["fingerprint"]},
                                         {"setting", "exact"},
                                         {"token_budget", row["token_budget"]}});
    if (exact == nullptr) continue;
    pairs.own.push_back(row["mean_kl"].get<double>());
    pairs.exact.push_back((*exact)["mean_kl"].get<double>());
  }
  return pairs;
}

void AddComparisonWithExact(const Checkpoint& checkpoint, const std::vector<Json>& rows,
                            Json* summary) {
  const Pairs pairs = PairsWithExact(checkpoint, rows);
  double exact_sum = 0;
  for (const double kl : pairs.exact) exact_sum += kl;
  const bool is_comparable = exact_sum > 0;
  const MeanInterval ratio =
      is_comparable ? BootstrapRatio(pairs.own, pairs.exact) : MeanInterval{};
  Json& s = *summary;
  s["over_exact"] = is_comparable ? Json(ratio.mean) : Json();
  s["over_exact_low"] = is_comparable ? Json(ratio.low) : Json();
  s["over_exact_high"] = is_comparable ? Json(ratio.high) : Json();
  s["vs_exact"] =
      is_comparable ? Json(Verdict(BootstrapDifference(pairs.own, pairs.exact), "better", "worse"))
                    : Json();
}

void AddComparisonWithDense(const std::vector<Json>& rows, Json* summary) {
  const MeanInterval nll = BootstrapDifference(Column(rows, "nll"), Column(rows, "dense_nll"));
  Json& s = *summary;
  s["perplexity_ratio"] = std::exp(nll.mean);
  s["perplexity_low"] = std::exp(nll.low);
  s["perplexity_high"] = std::exp(nll.high);
  s["vs_dense"] = Verdict(nll, "better", "worse");
}

}  // namespace

Json KlSummary(const Checkpoint& checkpoint, const TextJob& job, const std::vector<Json>& rows) {
  const MeanInterval kl = BootstrapMean(Column(rows, "mean_kl"));
  const MeanInterval top = BootstrapMean(Column(rows, "same_top"));
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
