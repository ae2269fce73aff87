#include "engine/weights/weight_plan.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "engine/weights/dequantise.h"

namespace tokenbutler {
namespace {

constexpr size_t kAlignment = 64;                     // of the first matrix of a fused group
constexpr int64_t kShareElements = int64_t{1} << 19;  // work that one thread takes at a time
constexpr int kProgressCalls = 64;

size_t AlignUp(size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

// The row of a stored, interleaved head that belongs at `row` of Hugging Face's order: channels
// i and i + head_dim / 2 rotate together there, 2i and 2i + 1 in the file.
int64_t InterleavedRow(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, channel = row % head_dim, half = head_dim / 2;
  const int64_t stored = channel < half ? 2 * channel : 2 * (channel - half) + 1;
  return head * head_dim + stored;
}

// Stored by some converters, recomputed by us.
bool IsDerived(std::string_view name) {
  constexpr std::array<std::string_view, 2> kSuffixes = {".rotary_emb.inv_freq",
                                                         ".attn_rot_embd.weight"};
  return std::any_of(kSuffixes.begin(), kSuffixes.end(), [&](std::string_view suffix) {
    return name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix;
  });
}

std::string InLayer(std::string_view pattern, int layer, std::string_view suffix) {
  return fmt::format(fmt::runtime(pattern), layer) + std::string(suffix);
}

}  // namespace

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

absl::StatusOr<WeightPlan> WeightPlan::Create(const ModelConfig& config, const TensorNames& names,
                                              const TensorSource& source, Options options) {
  WeightPlan plan;
  plan.options_ = options;
  RETURN_IF_ERROR(plan.AddModel(config, names, source));
  RETURN_IF_ERROR(plan.RefuseUnused(config, names, source));
  return plan;
}

absl::Status WeightPlan::AddModel(const ModelConfig& config, const TensorNames& names,
                                  const TensorSource& source) {
  const int64_t vocab = config.vocab_size, hidden = config.hidden_size;
  const auto add = [&](std::string_view name, std::vector<int64_t> shape, int* step) {
    return Add(source, std::string(name) + ".weight", std::move(shape), Placement::kAligned, step);
  };
  RETURN_IF_ERROR(add(names.token_embedding, {vocab, hidden}, &token_embedding_));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    LayerSteps steps;
    RETURN_IF_ERROR(AddAttention(config, names, source, layer, &steps));
    RETURN_IF_ERROR(AddMlp(config, names, source, layer, &steps));
    layers_.push_back(steps);
  }
  RETURN_IF_ERROR(add(names.final_norm, {hidden}, &final_norm_));
  lm_head_ = token_embedding_;
  if (config.tie_word_embeddings) return absl::OkStatus();
  return add(names.lm_head, {vocab, hidden}, &lm_head_);
}

absl::Status WeightPlan::AddAttention(const ModelConfig& config, const TensorNames& names,
                                      const TensorSource& source, int layer, LayerSteps* steps) {
  constexpr auto kAligned = Placement::kAligned, kAdjacent = Placement::kAdjacent;
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  const auto weight = [&](std::string_view name, std::vector<int64_t> shape, Placement placement,
                          int* step) {
    return Add(source, InLayer(name, layer, ".weight"), std::move(shape), placement, step);
  };
  const auto bias = [&](std::string_view name, int64_t size, Placement placement, int* step) {
    return Add(source, InLayer(name, layer, ".bias"), {size}, placement, step);
  };
  RETURN_IF_ERROR(weight(names.input_norm, {hidden}, kAligned, &steps->input_norm));
  RETURN_IF_ERROR(weight(names.q_proj, {q_rows, hidden}, kAligned, &steps->q_proj));
  RETURN_IF_ERROR(weight(names.k_proj, {kv_rows, hidden}, kAdjacent, &steps->k_proj));
  RETURN_IF_ERROR(weight(names.v_proj, {kv_rows, hidden}, kAdjacent, &steps->v_proj));
  if (config.qkv_bias) {
    RETURN_IF_ERROR(bias(names.q_proj, q_rows, kAligned, &steps->q_bias));
    RETURN_IF_ERROR(bias(names.k_proj, kv_rows, kAdjacent, &steps->k_bias));
    RETURN_IF_ERROR(bias(names.v_proj, kv_rows, kAdjacent, &steps->v_bias));
  }
  RETURN_IF_ERROR(weight(names.o_proj, {hidden, q_rows}, kAligned, &steps->o_proj));
  if (config.o_bias) RETURN_IF_ERROR(bias(names.o_proj, hidden, kAligned, &steps->o_bias));
  if (!options_.interleaved_qk) return absl::OkStatus();
  for (const int step : {steps->q_proj, steps->q_bias}) {
    if (step >= 0) steps_[step].interleaved_heads = config.num_heads;
  }
  for (const int step : {steps->k_proj, steps->k_bias}) {
    if (step >= 0) steps_[step].interleaved_heads = config.num_kv_heads;
  }
  return absl::OkStatus();
}

absl::Status WeightPlan::AddMlp(const ModelConfig& config, const TensorNames& names,
                                const TensorSource& source, int layer, LayerSteps* steps) {
  constexpr auto kAligned = Placement::kAligned, kAdjacent = Placement::kAdjacent;
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const auto add = [&](std::string_view name, std::string_view suffix, std::vector<int64_t> shape,
                       Placement placement, int* step) {
    return Add(source, InLayer(name, layer, suffix), std::move(shape), placement, step);
  };
  RETURN_IF_ERROR(
      add(names.post_attention_norm, ".weight", {hidden}, kAligned, &steps->post_attention_norm));
  RETURN_IF_ERROR(add(names.gate_proj, ".weight", {inner, hidden}, kAligned, &steps->gate_proj));
  RETURN_IF_ERROR(add(names.up_proj, ".weight", {inner, hidden}, kAdjacent, &steps->up_proj));
  RETURN_IF_ERROR(add(names.down_proj, ".weight", {hidden, inner}, kAligned, &steps->down_proj));
  if (!config.mlp_bias) return absl::OkStatus();
  RETURN_IF_ERROR(add(names.gate_proj, ".bias", {inner}, kAligned, &steps->gate_bias));
  RETURN_IF_ERROR(add(names.up_proj, ".bias", {inner}, kAdjacent, &steps->up_bias));
  return add(names.down_proj, ".bias", {hidden}, kAligned, &steps->down_bias);
}

absl::Status WeightPlan::Add(const TensorSource& source, const std::string& name,
                             std::vector<int64_t> shape, Placement placement, int* step_index) {
  ASSIGN_OR_RETURN(std::optional<StoredTensor> stored, source.FindStored(name));
  if (!stored.has_value()) {
    return NotFoundError("tensor {} is missing, wanted with shape {}", name, ShapeText(shape));
  }
  if (stored->shape != shape) {
    return InvalidArgumentError("tensor {} has shape {}, must have {}", name,
                                ShapeText(stored->shape), ShapeText(shape));
  }
  Step step;
  step.is_matrix = shape.size() == 2;
  if (!step.is_matrix && TraitsOf(stored->type).block_elements != 1) {
    return InvalidArgumentError("tensor {} is a vector of type {}, must be F32, F16 or BF16", name,
                                TraitsOf(stored->type).name);
  }
  step.stored = *std::move(stored);
  step.view.dtype = step.is_matrix ? options_.matrix_dtype : DType::kF32;
  step.view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), step.view.shape.begin());
  size_t& region_bytes = step.is_matrix ? matrix_bytes_ : vector_bytes_;
  if (placement == Placement::kAligned) region_bytes = AlignUp(region_bytes);
  step.offset = region_bytes;
  region_bytes += step.view.num_bytes();
  *step_index = static_cast<int>(steps_.size());
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status WeightPlan::RefuseUnused(const ModelConfig& config, const TensorNames& names,
                                      const TensorSource& source) const {
  std::set<std::string_view> used = {"rope_freqs.weight"};
  for (const Step& step : steps_) used.insert(step.stored.name);
  // Some folders store the tied head a second time.
  const std::string lm_head = std::string(names.lm_head) + ".weight";
  if (config.tie_word_embeddings) used.insert(lm_head);
  for (const std::string& name : source.TensorNamesInFiles()) {
    if (used.count(name) > 0 || IsDerived(name)) continue;
    return InvalidArgumentError("tensor {} has no place in architecture {} with this configuration",
                                name.substr(0, 255), config.architecture);
  }
  return absl::OkStatus();
}

std::vector<WeightPlan::Share> WeightPlan::SplitIntoShares() const {
  std::vector<Share> shares;
  for (uint32_t i = 0; i < steps_.size(); ++i) {
    const TensorView& view = steps_[i].view;
    const int64_t rows = view.shape[0];
    const int64_t columns = view.rank == 2 ? view.shape[1] : 1;
    const int64_t rows_each = std::max<int64_t>(1, kShareElements / columns);
    for (int64_t row = 0; row < rows; row += rows_each) {
      shares.push_back({i, row, std::min(rows, row + rows_each)});
    }
  }
  return shares;
}

void WeightPlan::Fill(const Step& step, const Share& share, std::byte* region) {
  const int64_t columns = step.view.rank == 2 ? step.view.shape[1] : 1;
  const GgmlType type = step.stored.type;
  std::byte* const out = region + step.offset;
  const auto fill_rows = [&](int64_t from, int64_t to, int64_t num_rows) {
    // A vector's "row" is one element: vectors are not stored in blocks.
    const std::byte* stored = step.stored.data + GgmlBytes(type, from * columns);
    if (step.view.dtype == DType::kF32) {
      Dequantise(type, stored, num_rows * columns, reinterpret_cast<float*>(out) + to * columns);
    } else {
      Dequantise(type, stored, num_rows * columns, reinterpret_cast<BF16*>(out) + to * columns);
    }
  };
  if (step.interleaved_heads == 0) {
    fill_rows(share.row_begin, share.row_begin, share.row_end - share.row_begin);
    return;
  }
  const int64_t head_dim = step.view.shape[0] / step.interleaved_heads;
  for (int64_t row = share.row_begin; row < share.row_end; ++row) {
    fill_rows(InterleavedRow(row, head_dim), row, 1);
  }
}

absl::StatusOr<ModelWeights> WeightPlan::Load(
    ComputePool& pool, const std::function<void(int64_t, int64_t)>& progress) const {
  ASSIGN_OR_RETURN(Buffer matrices, Buffer::Allocate(matrix_bytes_, MemoryKind::kHugePage));
  ASSIGN_OR_RETURN(Buffer vectors, Buffer::Allocate(vector_bytes_, MemoryKind::kHeap));
  const std::vector<Share> shares = SplitIntoShares();
  const size_t batch =
      std::max(shares.size() / kProgressCalls, static_cast<size_t>(pool.num_threads()) * 4);
  for (size_t begin = 0; begin < shares.size(); begin += batch) {
    const size_t end = std::min(shares.size(), begin + batch);
    pool.ParallelFor(static_cast<int>(end - begin), [&](int task) {
      const Share& share = shares[begin + static_cast<size_t>(task)];
      const Step& step = steps_[share.step];
      Fill(step, share, step.is_matrix ? matrices.data() : vectors.data());
    });
    if (progress)
      progress(total_bytes() * static_cast<int64_t>(end) / shares.size(), total_bytes());
  }

  const auto view_of = [&](int step) {
    if (step < 0) return TensorView{};
    TensorView view = steps_[step].view;
    view.data = (steps_[step].is_matrix ? matrices.data() : vectors.data()) + steps_[step].offset;
    return view;
  };
  ModelWeights weights;
  weights.token_embedding = view_of(token_embedding_);
  weights.final_norm = view_of(final_norm_);
  weights.lm_head = view_of(lm_head_);
  for (const LayerSteps& s : layers_) {
    weights.layers.push_back({
        .input_norm = view_of(s.input_norm),
        .q_proj = view_of(s.q_proj),
        .k_proj = view_of(s.k_proj),
        .v_proj = view_of(s.v_proj),
        .q_bias = view_of(s.q_bias),
        .k_bias = view_of(s.k_bias),
        .v_bias = view_of(s.v_bias),
        .o_proj = view_of(s.o_proj),
        .o_bias = view_of(s.o_bias),
        .post_attention_norm = view_of(s.post_attention_norm),
        .gate_proj = view_of(s.gate_proj),
        .up_proj = view_of(s.up_proj),
        .gate_bias = view_of(s.gate_bias),
        .up_bias = view_of(s.up_bias),
        .down_proj = view_of(s.down_proj),
        .down_bias = view_of(s.down_bias),
    });
  }
  weights.storage.push_back(std::move(matrices));
  weights.storage.push_back(std::move(vectors));
  return weights;
}

}  // namespace tokenbutler
