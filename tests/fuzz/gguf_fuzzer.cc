// Any bytes as a GGUF file: parsed, every value read in every type, then taken for a model up to
// and including its weights, as the loader does.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/compute_pool.h"
#include "engine/models/architectures.h"
#include "engine/weights/generation_defaults.h"
#include "engine/weights/gguf_model.h"
#include "engine/weights/gguf_tokenizer.h"
#include "engine/weights/weight_plan.h"
#include "tests/testing/touch_gguf.h"

namespace tokenbutler {
namespace {

constexpr int64_t kMaxWeightBytes = int64_t{1} << 20;

void LoadWeights(const GgufModel& model, const Architecture& architecture,
                 const ModelConfig& config) {
  const absl::StatusOr<WeightPlan> plan = WeightPlan::Create(
      config, architecture.gguf_tensors, model,
      {.matrix_dtype = DType::kBF16, .interleaved_qk = architecture.gguf_interleaves_qk});
  if (!plan.ok() || plan->total_bytes() > kMaxWeightBytes) return;
  ComputePool pool(1);
  (void)plan->Load(pool, nullptr).ok();
}

void Fuzz(absl::Span<const std::byte> bytes) {
  absl::StatusOr<GgufFile> file = GgufFile::Parse(bytes);
  if (!file.ok()) return;
  TouchEverything(*file);
  const absl::StatusOr<GgufModel> model = GgufModel::FromFile(*std::move(file));
  if (!model.ok()) return;
  (void)ReadGgufTokenizer(*model, 4).ok();
  (void)ReadGgufGeneration(*model, 4).ok();
  const absl::StatusOr<const Architecture*> architecture = FindGgufArchitecture(*model);
  if (!architecture.ok()) return;
  const absl::StatusOr<ModelConfig> config = ReadGgufConfig(**architecture, *model);
  if (config.ok()) LoadWeights(*model, **architecture, *config);
}

}  // namespace
}  // namespace tokenbutler

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tokenbutler::Fuzz({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
