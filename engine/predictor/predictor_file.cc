#include "engine/predictor/predictor_file.h"

#include <cmath>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "engine/predictor/predictor_fields.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/tensor_source.h"

namespace tokenbutler {
namespace {

// Takes the tensors of a file one by one, checked.
class TensorTaker {
 public:
  explicit TensorTaker(const SafetensorsFile& file) : file_(file) {}

  bool Has(const std::string& name) const { return file_.FindTensor(name) != nullptr; }

  absl::Status TakeFloats(const std::string& name, const std::vector<int64_t>& shape,
                          std::vector<float>* out) {
    ASSIGN_OR_RETURN(const SafetensorsTensor* tensor, Take(name, shape));
    const size_t bytes = tensor->type == SafetensorsType::kBF16 ? 2 : 4;
    out->resize(tensor->data.size() / bytes);
    for (size_t i = 0; i < out->size(); ++i) {
      ASSIGN_OR_RETURN((*out)[i], Element(*tensor, i));
    }
    return absl::OkStatus();
  }

  absl::Status TakeMatrix(const std::string& name, const std::vector<int64_t>& shape,
                          PredictorMatrix* out) {
    ASSIGN_OR_RETURN(const SafetensorsTensor* tensor, Take(name, shape));
    out->dtype = tensor->type == SafetensorsType::kBF16 ? DType::kBF16 : DType::kF32;
    for (size_t i = 0; i < tensor->data.size() / DTypeBytes(out->dtype); ++i) {
      RETURN_IF_ERROR(Element(*tensor, i).status());
    }
    out->bytes.assign(tensor->data.begin(), tensor->data.end());
    return absl::OkStatus();
  }

  // INVALID_ARGUMENT naming a tensor that nobody has taken.
  absl::Status CheckAllTaken() const {
    for (const SafetensorsTensor& tensor : file_.tensors()) {
      if (taken_.count(tensor.name) == 0) {
        return InvalidArgumentError("tensor '{}' does not belong into a file of this kind",
                                    tensor.name.substr(0, 100));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<const SafetensorsTensor*> Take(const std::string& name,
                                                const std::vector<int64_t>& shape) {
    const SafetensorsTensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr) {
      return InvalidArgumentError("tensor '{}' {} is missing", name, ShapeText(shape));
    }
    if (tensor->shape != shape) {
      return InvalidArgumentError("tensor '{}' has shape {}, must have {}", name,
                                  ShapeText(tensor->shape), ShapeText(shape));
    }
    if (tensor->type != SafetensorsType::kF32 && tensor->type != SafetensorsType::kBF16) {
      return InvalidArgumentError("tensor '{}' has dtype {}, must have F32 or BF16", name,
                                  SafetensorsTypeName(tensor->type));
    }
    taken_.insert(name);
    return tensor;
  }

  static absl::StatusOr<float> Element(const SafetensorsTensor& tensor, size_t index) {
    float value = 0;
    if (tensor.type == SafetensorsType::kBF16) {
      BF16 stored;
      std::memcpy(&stored, tensor.data.data() + 2 * index, 2);
      value = ToFloat(stored);
    } else {
      std::memcpy(&value, tensor.data.data() + 4 * index, 4);
    }
    if (std::isfinite(value)) return value;
    return InvalidArgumentError("tensor '{}': element {} is {}, must be finite", tensor.name, index,
                                value);
  }

  const SafetensorsFile& file_;
  std::set<std::string> taken_;
};

absl::Status TakeProducers(TensorTaker& tensors, Predictor* p) {
  const int64_t hidden_size = p->fingerprint.hidden_size;
  const int64_t num_outputs =
      int64_t{p->layers_per_predictor} * p->fingerprint.num_heads * p->projected_dim;
  p->producers.resize(static_cast<size_t>(p->num_producers()));
  for (size_t i = 0; i < p->producers.size(); ++i) {
    PredictorProducer& producer = p->producers[i];
    const std::string prefix = fmt::format("producers.{}.", i);
    RETURN_IF_ERROR(
        tensors.TakeFloats(prefix + "norm.weight", {hidden_size}, &producer.norm_weight));
    RETURN_IF_ERROR(tensors.TakeFloats(prefix + "norm.bias", {hidden_size}, &producer.norm_bias));
    RETURN_IF_ERROR(
        tensors.TakeMatrix(prefix + "input.weight", {p->hidden_dim, hidden_size}, &producer.input));
    RETURN_IF_ERROR(tensors.TakeMatrix(prefix + "output.weight", {num_outputs, p->hidden_dim},
                                       &producer.output));
  }
  return absl::OkStatus();
}

// The projections; none of them in a file whose projected_dim is 0.
absl::Status TakeProjections(TensorTaker& tensors, bool has_late, Predictor* p) {
  if (!p->has_projections()) {
    if (!has_late) return absl::OkStatus();
    return InvalidArgumentError(
        "metadata: late_projections is \"true\", must be false where projected_dim is 0");
  }
  const ModelFingerprint& f = p->fingerprint;
  const std::vector<int64_t> of_keys = {f.num_layers, f.num_kv_heads, f.head_dim, p->projected_dim};
  const std::vector<int64_t> of_queries = {f.num_layers, f.num_heads, f.head_dim, p->projected_dim};
  RETURN_IF_ERROR(tensors.TakeFloats("key_projection", of_keys, &p->key_projection));
  if (p->kind == PredictorKind::kLookahead && tensors.Has("early_projection")) {
    RETURN_IF_ERROR(tensors.TakeFloats("early_projection", of_queries, &p->early_projection));
  }
  if (!has_late) return absl::OkStatus();
  return tensors.TakeFloats("late_projection", of_queries, &p->late_projection);
}

absl::Status TakeCorrection(TensorTaker& tensors, Predictor* p) {
  if (p->correction_rank == 0) return absl::OkStatus();
  const ModelFingerprint& f = p->fingerprint;
  RETURN_IF_ERROR(tensors.TakeMatrix("query_correction.down",
                                     {f.num_layers, p->correction_rank, f.hidden_size},
                                     &p->correction_down));
  return tensors.TakeMatrix("query_correction.up",
                            {f.num_layers, int64_t{f.num_heads} * f.head_dim, p->correction_rank},
                            &p->correction_up);
}

absl::StatusOr<Predictor> FromFile(const SafetensorsFile& file) {
  ASSIGN_OR_RETURN(Predictor p, FromPredictorFields(file.metadata()));
  ASSIGN_OR_RETURN(const bool has_late, HasLateProjections(file.metadata()));
  RETURN_IF_ERROR(p.ValidateNumbers());
  TensorTaker tensors(file);
  RETURN_IF_ERROR(TakeProjections(tensors, has_late, &p));
  RETURN_IF_ERROR(TakeCorrection(tensors, &p));
  if (p.kind == PredictorKind::kTokenButler) RETURN_IF_ERROR(TakeProducers(tensors, &p));
  RETURN_IF_ERROR(tensors.CheckAllTaken());
  RETURN_IF_ERROR(p.Validate());
  return p;
}

}  // namespace

absl::StatusOr<Predictor> ParsePredictor(absl::Span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Parse(bytes));
  return FromFile(file);
}

absl::StatusOr<Predictor> ReadPredictor(const std::string& path) {
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  absl::StatusOr<Predictor> predictor = FromFile(file);
  if (!predictor.ok()) return Annotate(predictor.status(), path);
  return predictor;
}

absl::Status CheckArchitecture(const Predictor& predictor, const ModelFingerprint& model) {
  RETURN_IF_ERROR(predictor.Validate());
  const std::string difference = DifferenceFromModel(predictor.fingerprint, model);
  if (difference.empty()) return absl::OkStatus();
  return FailedPreconditionError("the predictor is for another architecture: its {}", difference);
}

absl::Status CheckPredictorFits(const Predictor& predictor, const ModelFingerprint& model,
                                const std::function<absl::StatusOr<std::string>()>& digest,
                                bool allow_unchecked) {
  RETURN_IF_ERROR(CheckArchitecture(predictor, model));
  if (allow_unchecked) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string found, digest());
  for (const std::string& known : predictor.model_sha256) {
    if (known == found) return absl::OkStatus();
  }
  const std::string all = fmt::format("{}", fmt::join(predictor.model_sha256, ", "));
  return FailedPreconditionError(
      "the predictor has not been validated with this model's files: their SHA-256 is {}, it knows "
      "{} (--predictor-unchecked uses it all the same)",
      found, all.empty() ? "none" : all);
}

}  // namespace tokenbutler
