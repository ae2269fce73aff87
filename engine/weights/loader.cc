#include "engine/weights/loader.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/compute_pool.h"
#include "base/cpu_features.h"
#include "engine/models/architectures.h"
#include "engine/weights/generation_defaults.h"
#include "engine/weights/gguf_model.h"
#include "engine/weights/gguf_tokenizer.h"
#include "engine/weights/hf_folder.h"
#include "engine/weights/weight_plan.h"

namespace tokenbutler {
namespace {

DType DefaultComputeDType() {
  return DetectCpuTarget() == CpuTarget::kAvx512Bf16 ? DType::kBF16 : DType::kF32;
}

// The last part of a path, for models that do not say their name.
std::string NameOf(const std::string& path) {
  std::filesystem::path name(path);
  if (!name.has_filename()) name = name.parent_path();  // "folder/"
  return name.extension() == ".gguf" ? name.stem().string() : name.filename().string();
}

absl::Status LoadWeights(const TensorSource& source, const TensorNames& names, bool interleaved_qk,
                         const LoadOptions& options, LoadedModel* model) {
  if (options.without_weights) return absl::OkStatus();
  ASSIGN_OR_RETURN(const WeightPlan plan, WeightPlan::Create(model->config, names, source,
                                                             {.matrix_dtype = model->compute_dtype,
                                                              .interleaved_qk = interleaved_qk}));
  ComputePool pool(options.num_threads > 0 ? options.num_threads : DefaultNumThreads());
  ASSIGN_OR_RETURN(model->weights, plan.Load(pool, options.progress));
  return absl::OkStatus();
}

absl::Status LoadGguf(const std::string& path, const LoadOptions& options, LoadedModel* model) {
  ASSIGN_OR_RETURN(const GgufModel gguf, GgufModel::Open(path));
  ASSIGN_OR_RETURN(const Architecture* architecture, FindGgufArchitecture(gguf));
  ASSIGN_OR_RETURN(model->config, ReadGgufConfig(*architecture, gguf));
  RETURN_IF_ERROR(ApplyOverrides(options.overrides, &model->config));
  const int vocab_size = model->config.vocab_size;
  ASSIGN_OR_RETURN(std::optional<TokenizerSpec> spec, ReadGgufTokenizer(gguf, vocab_size));
  ASSIGN_OR_RETURN(model->generation, ReadGgufGeneration(gguf, vocab_size));
  ASSIGN_OR_RETURN(model->chat_template, gguf.FindString("tokenizer.chat_template"));
  if (spec.has_value()) {
    if (spec->bos_id.has_value()) model->bos_token = spec->tokens[*spec->bos_id];
    if (spec->eos_id.has_value()) model->eos_token = spec->tokens[*spec->eos_id];
    spec->extra_eos_ids = model->generation.eos_ids;
    model->tokenizer = *std::move(spec);
  }
  return LoadWeights(gguf, architecture->gguf_tensors, architecture->gguf_interleaves_qk, options,
                     model);
}

absl::Status LoadHf(const std::string& path, const LoadOptions& options, LoadedModel* model) {
  ASSIGN_OR_RETURN(const HfFolder folder, HfFolder::Open(path));
  ASSIGN_OR_RETURN(const Architecture* architecture, FindHfArchitecture(folder.config()));
  ASSIGN_OR_RETURN(model->config, ReadHfConfig(*architecture, folder.config()));
  RETURN_IF_ERROR(ApplyOverrides(options.overrides, &model->config));
  model->tokenizer = folder.tokenizer();
  ASSIGN_OR_RETURN(model->generation, folder.Generation(model->config.vocab_size));
  ASSIGN_OR_RETURN(model->chat_template, folder.ChatTemplate());
  ASSIGN_OR_RETURN(model->bos_token, folder.SpecialToken("bos_token"));
  ASSIGN_OR_RETURN(model->eos_token, folder.SpecialToken("eos_token"));
  return LoadWeights(folder, architecture->hf_tensors, /*interleaved_qk=*/false, options, model);
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const std::string& path, const LoadOptions& options) {
  LoadedModel model;
  model.compute_dtype = options.compute_dtype.value_or(DefaultComputeDType());
  if (model.compute_dtype != DType::kF32 && model.compute_dtype != DType::kBF16) {
    return InvalidArgumentError("compute_dtype is {}, must be float32 or bfloat16",
                                DTypeName(model.compute_dtype));
  }
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(path, error);
  const absl::Status loaded =
      is_folder ? LoadHf(path, options, &model) : LoadGguf(path, options, &model);
  if (!loaded.ok()) return Annotate(loaded, fmt::format("cannot load {}", path));
  if (model.config.name.empty()) model.config.name = NameOf(path);
  return model;
}

}  // namespace tokenbutler
