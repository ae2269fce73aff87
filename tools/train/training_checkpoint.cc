#include "tools/train/training_checkpoint.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/sha256.h"
#include "tools/train/durable_file.h"

namespace tokenbutler {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "tokenbutler-training-checkpoint 1";
constexpr std::string_view kBeginning = R"({"format":"tokenbutler-training-checkpoint)";
constexpr size_t kDigestDigits = 64;

// In the order of the file.
template <typename Checkpoint>
auto ArraysOf(Checkpoint& c) {
  return std::array{&c.values, &c.best_values, &c.first_moment, &c.second_moment};
}

absl::Span<const char> BytesOf(const AlignedFloats& floats) {
  return {reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float)};
}

std::string DigestOf(absl::Span<const char> bytes) {
  return Sha256Hex({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

absl::Status CheckIdentity(const std::string& path, const Json& found, const Json& wanted) {
  for (const auto& [key, value] : wanted.items()) {
    const auto at = found.find(key);
    if (at != found.end() && *at == value) continue;
    return FailedPreconditionError(
        "{} is of a run with {} {}, this one has {}: go on with the same, or give another output "
        "folder",
        path, key, at == found.end() ? "absent" : at->dump(), value.dump());
  }
  return absl::OkStatus();
}

void ReadNumbers(const Json& header, TrainingCheckpoint* c) {
  header.at("step").get_to(c->step);
  header.at("seconds").get_to(c->seconds);
  header.at("log_bytes").get_to(c->log_bytes);
  header.at("is_finished").get_to(c->is_finished);
  header.at("stopped_early").get_to(c->stopped_early);
  header.at("best_step").get_to(c->best_step);
  header.at("first_loss").get_to(c->first_loss);
  header.at("best_loss").get_to(c->best_loss);
}

}  // namespace

absl::Status TrainingCheckpoint::Write(const std::string& path, const Json& identity) const {
  std::vector<size_t> sizes;
  for (const AlignedFloats* array : ArraysOf(*this)) sizes.push_back(array->size());
  const Json header = {{"format", kFormat},          {"step", step},
                       {"seconds", seconds},         {"log_bytes", log_bytes},
                       {"is_finished", is_finished}, {"stopped_early", stopped_early},
                       {"best_step", best_step},     {"first_loss", first_loss},
                       {"best_loss", best_loss},     {"sizes", sizes},
                       {"identity", identity}};
  std::string bytes = header.dump() + "\n";
  for (const AlignedFloats* array : ArraysOf(*this)) {
    bytes.append(BytesOf(*array).data(), BytesOf(*array).size());
  }
  bytes += DigestOf(bytes);
  return WriteFileDurably(path, bytes);
}

absl::StatusOr<std::optional<TrainingCheckpoint>> TrainingCheckpoint::Read(const std::string& path,
                                                                           const Json& identity) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::optional<TrainingCheckpoint>();
  std::ifstream in(path, std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) return UnavailableError("{} cannot be read: {}", path, std::strerror(errno));
  if (file.compare(0, kBeginning.size(), kBeginning) != 0) {
    return InvalidArgumentError("{} is not a training checkpoint", path);
  }
  absl::Span<const char> bytes(file);
  bytes.remove_suffix(std::min(kDigestDigits, bytes.size()));
  if (file.substr(bytes.size()) != DigestOf(bytes)) {
    return DataLossError("{} is damaged: it does not have the digest at its end", path);
  }
  const size_t end_of_line = file.find('\n');
  TrainingCheckpoint checkpoint;
  try {
    const Json header = Json::parse(file.begin(), file.begin() + end_of_line);
    if (header.at("format") != kFormat) {
      return UnimplementedError("{} has the format {}, must have \"{}\"", path,
                                header.at("format").dump(), kFormat);
    }
    RETURN_IF_ERROR(CheckIdentity(path, header.at("identity"), identity));
    ReadNumbers(header, &checkpoint);
    bytes.remove_prefix(end_of_line + 1);
    const auto sizes = header.at("sizes").get<std::array<size_t, 4>>();
    for (size_t i = 0; i < sizes.size(); ++i) {
      AlignedFloats& to = *ArraysOf(checkpoint)[i];
      to.resize(sizes[i]);
      if (BytesOf(to).size() > bytes.size()) return DataLossError("{} is too short", path);
      std::memcpy(to.data(), bytes.data(), BytesOf(to).size());
      bytes.remove_prefix(BytesOf(to).size());
    }
  } catch (const Json::exception& problem) {
    return DataLossError("{} is damaged: {}", path, problem.what());
  }
  return checkpoint;
}

}  // namespace tokenbutler
