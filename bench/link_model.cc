#include "bench/link_model.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "offload/kv_layout.h"

namespace tokenbutler {
namespace {

using Sent = LayerTransfer::Sent;

// One step after another on one device and one link. Milliseconds.
class Timeline {
 public:
  Timeline(const LinkModel& model, const LinkModel::Run& run, double ms_per_byte)
      : latency_ms_(model.latency_us / 1e3),
        before_ms_(model.step_ms / model.num_layers * model.before_attention),
        after_ms_(model.step_ms / model.num_layers - before_ms_),
        ms_per_byte_(ms_per_byte),
        defers_(run.defers),
        arrivals_(static_cast<size_t>(run.num_layers)) {}

  void Step(const StepTransfers& transfers) {
    size_t next = 0;
    const auto send = [&](int during, Sent sent) {
      for (; next < transfers.size() && transfers[next].during == during &&
             transfers[next].sent == sent;
           ++next) {
        Send(transfers[next]);
      }
    };
    for (int l = 0; l < static_cast<int>(arrivals_.size()); ++l) {
      send(l, Sent::kAtInput);
      now_ += before_ms_;
      send(l, Sent::kAtChoice);
      WaitFor(l);
      send(l, Sent::kAtFetch);
      if (!defers_) WaitFor(l);
      send(l, Sent::kAfterAttention);
      now_ += after_ms_;
    }
  }

  double stall_ms() const { return stall_ms_; }

 private:
  void Send(const LayerTransfer& transfer) {
    free_at_ = std::max(now_, free_at_) + static_cast<double>(transfer.bytes) * ms_per_byte_;
    arrivals_[static_cast<size_t>(transfer.layer)] = free_at_ + latency_ms_;
  }
  void WaitFor(int layer) {
    const double wait = std::max(0.0, arrivals_[static_cast<size_t>(layer)] - now_);
    stall_ms_ += wait;
    now_ += wait;
  }

  const double latency_ms_, before_ms_, after_ms_, ms_per_byte_;
  const bool defers_;
  double now_ = 0, free_at_ = 0, stall_ms_ = 0;
  std::vector<double> arrivals_;  // of what was last sent for each layer
};

}  // namespace

LinkModel::Step LinkModel::StepOf(const Run& run) const {
  if (run.lookups == 0 || run.steps.empty()) return {};
  const double num_steps = static_cast<double>(run.steps.size());
  // One layer's attended bytes, there by here.
  const double scale =
      2.0 * head_dim * element_bytes * token_budget * num_kv_heads /
      (run.token_bytes * static_cast<double>(run.lookups) / (num_steps * run.num_layers));
  const double more_layers = static_cast<double>(num_layers) / run.num_layers;
  Timeline timeline(*this, run, scale / gbps / 1e6);
  double bytes = 0;
  for (const StepTransfers& transfers : run.steps) {
    timeline.Step(transfers);
    for (const LayerTransfer& transfer : transfers) bytes += static_cast<double>(transfer.bytes);
  }
  const double mb = bytes * scale * more_layers / num_steps / 1e6;
  return {
      .mb = mb, .link_ms = mb / gbps, .stall_ms = timeline.stall_ms() * more_layers / num_steps};
}

int64_t LinkModel::DeviceBytes(const ResidentOptions& options) const {
  ResidentOptions there = options;
  const auto scaled = [&](int tokens) {
    return static_cast<int>(
        std::lround(static_cast<double>(tokens) * token_budget / options.token_budget));
  };
  there.token_budget = token_budget;
  there.candidates = scaled(options.candidates);
  there.sink_tokens = scaled(options.sink_tokens);
  there.local_window = scaled(options.local_window);
  return StagedBytes({.num_layers = num_layers,
                      .num_kv_heads = num_kv_heads,
                      .head_dim = head_dim,
                      .dtype = element_bytes == 4 ? DType::kF32 : DType::kBF16},
                     there);
}

}  // namespace tokenbutler
