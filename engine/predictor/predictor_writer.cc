#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "engine/predictor/predictor_fields.h"
#include "engine/predictor/predictor_file.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {
namespace {

constexpr size_t kHeaderAlignment = 64;  // so that tensors begin at multiples of it

// The tensors of a file in the order of writing.
struct Tensors {
  nlohmann::ordered_json header;
  std::string data;

  void Add(const std::string& name, const PredictorMatrix& matrix,
           const std::vector<int64_t>& shape) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(matrix.bytes.data()), matrix.bytes.size());
    header[name] = {{"dtype", matrix.dtype == DType::kF32 ? "F32" : "BF16"},
                    {"shape", shape},
                    {"data_offsets", {begin, data.size()}}};
  }
  void Add(const std::string& name, const std::vector<float>& values, DType dtype,
           const std::vector<int64_t>& shape) {
    Add(name, PredictorMatrix::FromFloats(values, dtype), shape);
  }
};

void AddTensors(const Predictor& p, DType dtype, Tensors* tensors) {
  const ModelFingerprint& f = p.fingerprint;
  if (p.has_projections()) {
    tensors->Add("key_projection", p.key_projection, dtype,
                 {f.num_layers, f.num_kv_heads, f.head_dim, p.projected_dim});
  }
  const std::vector<int64_t> of_queries = {f.num_layers, f.num_heads, f.head_dim, p.projected_dim};
  if (!p.early_projection.empty()) {
    tensors->Add("early_projection", p.early_projection, dtype, of_queries);
  }
  if (!p.late_projection.empty()) {
    tensors->Add("late_projection", p.late_projection, dtype, of_queries);
  }
  if (p.correction_rank > 0) {
    tensors->Add("query_correction.down", p.correction_down,
                 {f.num_layers, p.correction_rank, f.hidden_size});
    tensors->Add("query_correction.up", p.correction_up,
                 {f.num_layers, int64_t{f.num_heads} * f.head_dim, p.correction_rank});
  }
  const int64_t num_outputs = int64_t{p.layers_per_predictor} * f.num_heads * p.projected_dim;
  for (size_t i = 0; i < p.producers.size(); ++i) {
    const PredictorProducer& producer = p.producers[i];
    const std::string prefix = fmt::format("producers.{}.", i);
    tensors->Add(prefix + "norm.weight", producer.norm_weight, DType::kF32, {f.hidden_size});
    tensors->Add(prefix + "norm.bias", producer.norm_bias, DType::kF32, {f.hidden_size});
    tensors->Add(prefix + "input.weight", producer.input, {p.hidden_dim, f.hidden_size});
    tensors->Add(prefix + "output.weight", producer.output, {num_outputs, p.hidden_dim});
  }
}

// Writes and flushes to the disk. False, errno says why.
bool WriteWhole(const std::string& path, const std::string& bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return false;
  const bool is_written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() &&
                          std::fflush(file) == 0 && fsync(fileno(file)) == 0;
  const int error = errno;
  if (std::fclose(file) != 0 && is_written) return false;
  errno = error;
  return is_written;
}

}  // namespace

absl::StatusOr<std::string> PredictorFileBytes(const Predictor& predictor, DType projection_dtype,
                                               const std::map<std::string, std::string>& more) {
  RETURN_IF_ERROR(predictor.Validate());
  PredictorFields fields = ToPredictorFields(predictor);
  for (const auto& [key, value] : more) {
    if (!fields.emplace(key, value).second) {
      return InvalidArgumentError("metadata: {} is the format's own, must have another name", key);
    }
  }
  Tensors tensors;
  tensors.header["__metadata__"] = fields;
  AddTensors(predictor, projection_dtype, &tensors);
  std::string header;
  try {
    header = tensors.header.dump();
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgumentError("metadata: not valid UTF-8: {}", error.what());
  }
  while ((header.size() + sizeof(uint64_t)) % kHeaderAlignment != 0) header += ' ';
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  return bytes + header + tensors.data;
}

absl::Status WritePredictor(const std::string& path, const Predictor& predictor,
                            DType projection_dtype,
                            const std::map<std::string, std::string>& more) {
  ASSIGN_OR_RETURN(const std::string bytes, PredictorFileBytes(predictor, projection_dtype, more));
  const std::string unfinished = path + ".unfinished";
  if (WriteWhole(unfinished, bytes) && std::rename(unfinished.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  const std::string reason = std::strerror(errno);
  std::error_code ignored;
  std::filesystem::remove(unfinished, ignored);
  return UnavailableError("{} cannot be written: {}", path, reason);
}

}  // namespace tokenbutler
