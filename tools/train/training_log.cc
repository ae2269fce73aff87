#include "tools/train/training_log.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace tokenbutler {
namespace {

using Json = nlohmann::ordered_json;

// Six significant digits: a log is for people and plots.
Json Rounded(double x) {
  if (!std::isfinite(x)) return nullptr;
  return std::stod(fmt::format("{:.6g}", x));
}

}  // namespace

absl::StatusOr<TrainingLog> TrainingLog::Open(const std::string& path, uint64_t bytes) {
  std::error_code error;
  const uint64_t found = std::filesystem::file_size(path, error);
  if (!error && found > bytes) std::filesystem::resize_file(path, bytes, error);
  if (!error && found < bytes) bytes = found;  // somebody has shortened it: a plot lacks a piece
  if (error && std::filesystem::exists(path)) {
    return UnavailableError("{} cannot be cut to {} bytes: {}", path, bytes, error.message());
  }
  if (error) bytes = 0;
  return TrainingLog(path, bytes);
}

absl::Status TrainingLog::Add(const Json& line) {
  const std::string text = line.dump() + "\n";
  std::ofstream out(path_, std::ios::app);
  out << text << std::flush;
  if (!out) return UnavailableError("{} cannot be written: {}", path_, std::strerror(errno));
  bytes_ += text.size();
  return absl::OkStatus();
}

absl::Status TrainingLog::Add(const TrainingEvent& event) {
  const bool is_step = event.kind == TrainingEvent::Kind::kStep;
  Json line = {{"type", is_step ? "step" : "validation"},
               {"step", event.step},
               {"seconds", Rounded(event.seconds)},
               {"loss", Rounded(event.loss)}};
  if (is_step) {
    line["learning_rate"] = Rounded(event.learning_rate);
    line["gradient_norm"] = Rounded(event.gradient_norm);
    return Add(line);
  }
  line["is_best"] = event.is_best;
  line["layers"] = line["early"] = line["late"] = Json::array();
  for (const LayerKl& layer : event.layers) {
    line["layers"].push_back(layer.layer);
    line["early"].push_back(layer.early ? Rounded(*layer.early) : Json());
    line["late"].push_back(layer.late ? Rounded(*layer.late) : Json());
  }
  return Add(line);
}

}  // namespace tokenbutler
