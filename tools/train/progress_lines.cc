#include "tools/train/progress_lines.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "fmt/format.h"

namespace tokenbutler {
namespace {

constexpr absl::Duration kBetweenLines = absl::Seconds(30);

// The mean over the layers that have it, and the worst one.
template <std::optional<float> LayerKl::*kMember>
std::string PartText(const std::vector<LayerKl>& layers, std::string_view name) {
  double sum = 0;
  int count = 0;
  const LayerKl* worst = nullptr;
  for (const LayerKl& layer : layers) {
    if (!(layer.*kMember).has_value()) continue;
    sum += *(layer.*kMember);
    ++count;
    if (worst == nullptr || *(layer.*kMember) > *(worst->*kMember)) worst = &layer;
  }
  if (count == 0) return "";
  return fmt::format(", {} {:.4f} (layer {}: {:.4f})", name, sum / count, worst->layer,
                     *(worst->*kMember));
}

}  // namespace

std::string DurationText(double seconds) {
  const int64_t s = std::llround(std::max(seconds, 0.0));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  return fmt::format("{} d {:02} h", s / 86400, s / 3600 % 24);
}

ProgressLines::ProgressLines(int64_t num_steps, int64_t steps_done, bool is_terminal)
    : num_steps_(num_steps), first_step_(steps_done), is_terminal_(is_terminal) {}

std::string ProgressLines::Eta(int64_t step, absl::Time now) const {
  // The first step only starts the clock.
  const int64_t timed = step - first_step_ - 1;
  if (timed <= 0) return "";
  const double per_step = absl::ToDoubleSeconds(now - started_) / static_cast<double>(timed);
  return fmt::format(", {:.2f} s a step, {} left", per_step,
                     DurationText(per_step * static_cast<double>(num_steps_ - step)));
}

std::string ProgressLines::For(const TrainingEvent& event, absl::Time now) {
  const std::string begin = is_terminal_ ? "\r\x1b[K" : "";
  if (event.kind == TrainingEvent::Kind::kValidation) {
    if (first_validation_ == 0) first_validation_ = event.loss;
    return fmt::format("{}step {}: validation {:.4f} nats{}{}{}\n", begin, event.step, event.loss,
                       PartText<&LayerKl::early>(event.layers, "early"),
                       PartText<&LayerKl::late>(event.layers, "late"),
                       event.is_best && event.step > 0 ? ", the best so far" : "");
  }
  if (started_ == absl::InfinitePast()) started_ = now;
  if (!is_terminal_ && now - printed_ < kBetweenLines && event.step < num_steps_) return "";
  printed_ = now;
  return fmt::format("{}step {} of {}: loss {:.4f}, learning rate {:.2g}{}{}", begin, event.step,
                     num_steps_, event.loss, event.learning_rate, Eta(event.step, now),
                     is_terminal_ && event.step < num_steps_ ? "" : "\n");
}

std::string EstimateText(const TrainingEstimate& estimate) {
  const double share = 100.0 * static_cast<double>(estimate.num_parameters) /
                       static_cast<double>(std::max<int64_t>(estimate.num_model_parameters, 1));
  return fmt::format(
      "parameters  {} ({:.2f} % of the model's {})\n"
      "memory      {:.0f} MiB beside the model\n"
      "time        {:.2f} s a step, {} in all\n",
      estimate.num_parameters, share, estimate.num_model_parameters,
      static_cast<double>(estimate.memory_bytes) / 0x1p20, estimate.seconds_per_step,
      DurationText(estimate.seconds));
}

std::string ResultText(const TrainingResult& result, const std::string& output) {
  if (!result.is_finished) {
    return fmt::format(
        "Stopped after step {}. The same command goes on from there; the best predictor so far, of "
        "step {} ({:.4f} nats), is {}/predictor.safetensors.\n",
        result.steps, result.best_step, result.best_loss, output);
  }
  return fmt::format(
      "{} after {} steps and {}: from {:.4f} to {:.4f} nats at step {}.\n"
      "{}/predictor.safetensors is that step's.\n",
      result.stopped_early ? "Nothing got better any more: ended" : "Done", result.steps,
      DurationText(result.seconds), result.first_loss, result.best_loss, result.best_step, output);
}

}  // namespace tokenbutler
