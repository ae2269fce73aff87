#include "engine/transformer.h"

#include <utility>

#include "engine/check_weights.h"
#include "engine/kernels/embedding.h"
#include "engine/kernels/rms_norm.h"
#include "engine/sparse_steps.h"

namespace tokenbutler {
namespace {

// residual = the tokens' embeddings.
void Embed(const TokenRows& rows, const TensorView& table) {
  Embedding({.table = table.data,
             .table_dtype = table.dtype,
             .token_ids = rows.token_ids().data(),
             .out = rows.activations().residual,
             .num_rows = rows.num_rows(),
             .hidden_size = rows.config().hidden_size});
}

// normed = norm(residual).
void Normalise(const TokenRows& rows, const TensorView& weight, DenseMath& math) {
  const Activations& a = rows.activations();
  const int size = rows.config().hidden_size;
  math.ForRows(rows.num_rows(), [&](int begin, int end) {
    RmsNorm({.x = a.residual + static_cast<size_t>(begin) * size,
             .weight = weight.as<float>(),
             .out = rows.Unrounded(a.normed, begin, size),
             .eps = rows.config().rms_norm_eps,
             .num_rows = end - begin,
             .hidden_size = size});
    rows.Round(a.normed, begin, end, size);
  });
}

// residual += projected; normed = norm(residual).
void AddAndNormalise(const TokenRows& rows, const TensorView& weight, DenseMath& math) {
  const Activations& a = rows.activations();
  const int size = rows.config().hidden_size;
  math.ForRows(rows.num_rows(), [&](int begin, int end) {
    const size_t at = static_cast<size_t>(begin) * size;
    AddRmsNorm({.residual = a.residual + at,
                .x = a.projected + at,
                .weight = weight.as<float>(),
                .out = rows.Unrounded(a.normed, begin, size),
                .eps = rows.config().rms_norm_eps,
                .num_rows = end - begin,
                .hidden_size = size});
    rows.Round(a.normed, begin, end, size);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(const ModelConfig& config,
                                                                 const ModelWeights& weights) {
  RETURN_IF_ERROR(CheckWeights(config, weights));
  auto transformer = std::unique_ptr<Transformer>(new Transformer());
  transformer->token_embedding_ = weights.token_embedding;
  transformer->first_norm_ = weights.layers[0].input_norm;
  transformer->lm_head_ = weights.lm_head;
  for (int l = 0; l < config.num_layers; ++l) {
    const LayerWeights& layer = weights.layers[l];
    const bool is_last = l + 1 == config.num_layers;
    ASSIGN_OR_RETURN(AttentionLayer attention, AttentionLayer::Create(config, layer, l));
    ASSIGN_OR_RETURN(MlpLayer mlp, MlpLayer::Create(layer));
    transformer->layers_.push_back(
        {.attention = std::move(attention),
         .post_attention_norm = layer.post_attention_norm,
         .mlp = std::move(mlp),
         .next_norm = is_last ? weights.final_norm : weights.layers[l + 1].input_norm});
  }
  return transformer;
}

void Transformer::Run(TokenRows& rows, DenseMath& math) const {
  Embed(rows, token_embedding_);
  Normalise(rows, first_norm_, math);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    layer.attention.Run(rows, math);
    AddAndNormalise(rows, layer.post_attention_norm, math);
    PredictAhead(rows, static_cast<int>(l), LayerPoint::kAfterAttention, math.pool());
    layer.mlp.Run(rows, math);
    AddAndNormalise(rows, layer.next_norm, math);
  }
}

void Transformer::Logits(const TokenRows& rows, int first_row, int num_rows, DenseMath& math,
                         float* logits) const {
  const size_t row_bytes = rows.config().hidden_size * DTypeBytes(compute_dtype());
  const std::byte* normed = static_cast<const std::byte*>(rows.activations().normed);
  math.Linear(normed + first_row * row_bytes, lm_head_, /*bias=*/nullptr, logits, num_rows);
}

}  // namespace tokenbutler
