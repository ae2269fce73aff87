#include "engine/selection/projected_policies.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/status_details.h"
#include "engine/selection/predicted_queries.h"
#include "engine/selection/projected_scanner.h"
#include "engine/selection/scanning_selector.h"
#include "engine/selection/sketch.h"

namespace tokenbutler {
namespace {

using Selector = absl::StatusOr<std::unique_ptr<TokenSelector>>;

const Predictor* PredictorOf(const AttentionParams& params, const SelectionResources& resources) {
  if (params.policy == AttentionPolicy::kTokenButler) return resources.predictor;
  return params.policy == AttentionPolicy::kPca ? resources.pca : nullptr;
}

KeyFormat KeysOf(const AttentionParams& params, const SelectionResources& resources) {
  const Predictor* predictor = PredictorOf(params, resources);
  const bool has_bits = params.policy == AttentionPolicy::kSketch ||
                        (predictor != nullptr && !predictor->has_projections());
  return params.keys.value_or(has_bits ? KeyFormat::kBits2 : KeyFormat::kProjected);
}

QuerySource QueryOf(const AttentionParams& params, const SelectionResources& resources) {
  if (params.query.has_value()) return *params.query;
  if (params.policy != AttentionPolicy::kTokenButler) return QuerySource::kReal;
  const bool has_producers =
      resources.predictor != nullptr && resources.predictor->kind == PredictorKind::kTokenButler;
  const bool is_projected = KeysOf(params, resources) == KeyFormat::kProjected;
  return has_producers && is_projected ? QuerySource::kMlp : QuerySource::kLookahead;
}

// Whether the layers' own queries can be projected.
bool CanProjectQueries(const Predictor* predictor) {
  return predictor == nullptr || predictor->kind != PredictorKind::kTokenButler ||
         !predictor->late_projection.empty();
}

ProjectedLayout ProjectedLayoutFor(const AttentionParams& params,
                                   const SelectionResources& resources) {
  const Predictor* predictor = PredictorOf(params, resources);
  return {.dim = predictor == nullptr ? std::min(params.projected_dim, resources.layout.head_dim)
                                      : predictor->projected_dim,
          .block_size = resources.layout.block_size,
          .format = ProjectedFormat::kInt8};
}

size_t RecordBytes(const AttentionParams& params, const SelectionResources& resources) {
  if (KeysOf(params, resources) == KeyFormat::kProjected) {
    const ProjectedLayout layout = ProjectedLayoutFor(params, resources);
    return layout.IsValid() ? layout.record_bytes() : 0;
  }
  const SketchLayout layout = SketchLayoutFor(params, resources.layout);
  return layout.IsValid() ? layout.record_bytes() : 0;
}

template <typename... Args>
absl::Status FieldError(std::string_view field, fmt::format_string<Args...> format,
                        Args&&... args) {
  return WithField(InvalidArgumentError(format, std::forward<Args>(args)...), field);
}

absl::Status CheckShape(const AttentionParams& params, const SelectionResources& resources) {
  const KvLayout& kv = resources.layout;
  const bool is_projected = KeysOf(params, resources) == KeyFormat::kProjected;
  if (is_projected ? ProjectedLayoutFor(params, resources).IsValid()
                   : SketchLayoutFor(params, kv).IsValid()) {
    return absl::OkStatus();
  }
  return FieldError("attention.policy",
                    "attention.policy \"{}\" needs a head_dim that is a multiple of {} and a block "
                    "size that is a multiple of 16; they are {} and {}",
                    PolicyName(params.policy), is_projected ? 4 : 16, kv.head_dim, kv.block_size);
}

absl::Status WrongQuery(const AttentionParams& params, const SelectionResources& resources,
                        std::string_view known) {
  const QuerySource query = QueryOf(params, resources);
  return FieldError("attention.query", "attention.query is \"{}\", must be {} for policy \"{}\"",
                    QuerySourceName(query), known, PolicyName(params.policy));
}

absl::Status WrongKeys(const AttentionParams& params, const SelectionResources& resources,
                       std::string_view known) {
  return FieldError("attention.keys", "attention.keys is \"{}\", must be {} for policy \"{}\"",
                    KeyFormatName(KeysOf(params, resources)), known, PolicyName(params.policy));
}

absl::Status CheckSketch(const AttentionParams& params, const SelectionResources& resources) {
  if (KeysOf(params, resources) == KeyFormat::kProjected) {
    return WrongKeys(params, resources, "bits1, bits2 or bits4");
  }
  if (QueryOf(params, resources) == QuerySource::kMlp) {
    return WrongQuery(params, resources, "real or lookahead");
  }
  return CheckShape(params, resources);
}

absl::Status CheckPca(const AttentionParams& params, const SelectionResources& resources) {
  if (KeysOf(params, resources) != KeyFormat::kProjected) {
    return WrongKeys(params, resources, "projected");
  }
  if (QueryOf(params, resources) == QuerySource::kMlp) {
    return WrongQuery(params, resources, "real or lookahead");
  }
  return CheckShape(params, resources);
}

absl::Status CheckTokenButler(const AttentionParams& params, const SelectionResources& resources) {
  if (resources.predictor == nullptr) {
    return WithField(
        FailedPreconditionError(
            "attention.policy is \"tokenbutler\", which needs a predictor: {}",
            resources.no_predictor.empty() ? "the server was given none" : resources.no_predictor),
        "attention.policy");
  }
  const Predictor& predictor = *resources.predictor;
  const QuerySource query = QueryOf(params, resources);
  if (KeysOf(params, resources) != KeyFormat::kProjected) {
    if (query == QuerySource::kMlp) {
      return FieldError("attention.query",
                        "attention.query is \"mlp\", which needs attention.keys \"projected\"");
    }
    return CheckShape(params, resources);
  }
  if (!predictor.has_projections()) {
    return FieldError(
        "attention.keys",
        "attention.keys is \"projected\", must be bits1, bits2 or bits4: the server's "
        "predictor has no projections of keys");
  }
  if (query == QuerySource::kMlp && predictor.kind != PredictorKind::kTokenButler) {
    return FieldError("attention.query",
                      "attention.query is \"mlp\", but the server's predictor is of kind \"{}\"",
                      PredictorKindName(predictor.kind));
  }
  if (CanProjectQueries(&predictor)) return CheckShape(params, resources);
  constexpr std::string_view kLack = "the server's predictor has no projections of real queries";
  if (query != QuerySource::kMlp) {
    return FieldError("attention.query", "attention.query is \"{}\", but {}",
                      QuerySourceName(query), kLack);
  }
  if (params.candidates > 0) {
    return FieldError("attention.candidates", "attention.candidates is {}, must be 0: {}",
                      params.candidates, kLack);
  }
  return CheckShape(params, resources);
}

const float* DataOrNull(const std::vector<float>& values, const std::vector<float>& otherwise) {
  if (!values.empty()) return values.data();
  return otherwise.empty() ? nullptr : otherwise.data();
}

std::unique_ptr<KeyScanner> NewScanner(const AttentionParams& params,
                                       const SelectionResources& resources) {
  const KvLayout& kv = resources.layout;
  if (KeysOf(params, resources) != KeyFormat::kProjected) {
    return NewSketchScanner(params, kv, resources.config->num_layers);
  }
  ProjectedScannerOptions options = {
      .layout = ProjectedLayoutFor(params, resources),
      .scale = 1.0f / std::sqrt(static_cast<float>(kv.head_dim)),
      .predicted_are_projected = QueryOf(params, resources) == QuerySource::kMlp};
  if (const Predictor* predictor = PredictorOf(params, resources)) {
    options.scale = predictor->score_scale();
    options.pooling = predictor->pooling;
    options.keys = predictor->key_projection.data();
    options.early = DataOrNull(predictor->early_projection, predictor->late_projection);
    options.late = DataOrNull(predictor->late_projection, predictor->early_projection);
  }
  return NewProjectedScanner(options, kv);
}

std::unique_ptr<QueryPredictor> NewQuery(const AttentionParams& params,
                                         const SelectionResources& resources) {
  const QuerySource query = QueryOf(params, resources);
  if (query == QuerySource::kReal) return nullptr;
  if (query == QuerySource::kMlp) return NewProducerQuery(resources, *resources.predictor);
  const bool is_trained = params.policy == AttentionPolicy::kTokenButler &&
                          resources.predictor->kind == PredictorKind::kLookahead;
  if (is_trained) return NewLookaheadQuery(resources, *resources.predictor);
  return NewLookaheadQuery(resources, resources.lookahead_layers, LayerPoint::kAfterAttention);
}

PolicyMemory Memory(const AttentionParams& params, const SelectionResources& resources,
                    int num_tokens) {
  const KvLayout& kv = resources.layout;
  const int num_layers = resources.config->num_layers;
  int64_t bytes = ScanningSelector::MostBytes(params, num_layers, kv.num_kv_heads, num_tokens);
  if (KeysOf(params, resources) == KeyFormat::kProjected) {
    // A score of each token, an index of each found.
    const int64_t found = ScanningSelector::MostFound(params, num_tokens);
    bytes += kv.num_kv_heads * (num_tokens * int64_t{sizeof(float)} + found * int64_t{sizeof(int)});
  } else {
    bytes += SketchScannerBytes(params, kv, num_layers, num_tokens);
  }
  return {.own = bytes};
}

Selector NewSelector(const AttentionParams& params, const SelectionResources& resources) {
  // Nothing predicts layer 0, so a predictor that cannot use the real query leaves it dense.
  const bool first_is_dense =
      QueryOf(params, resources) == QuerySource::kMlp && !CanProjectQueries(resources.predictor);
  return std::make_unique<ScanningSelector>(params, resources.config->num_layers,
                                            NewScanner(params, resources),
                                            NewQuery(params, resources), first_is_dense);
}

}  // namespace

const PolicySpec kTokenButlerPolicy = {.policy = AttentionPolicy::kTokenButler,
                                       .scores_whole_blocks = true,
                                       .record_bytes = RecordBytes,
                                       .memory = Memory,
                                       .check = CheckTokenButler,
                                       .create = NewSelector};
const PolicySpec kPcaPolicy = {.policy = AttentionPolicy::kPca,
                               .scores_whole_blocks = true,
                               .record_bytes = RecordBytes,
                               .memory = Memory,
                               .check = CheckPca,
                               .create = NewSelector};
const PolicySpec kSketchPolicy = {.policy = AttentionPolicy::kSketch,
                                  .scores_whole_blocks = true,
                                  .record_bytes = RecordBytes,
                                  .memory = Memory,
                                  .check = CheckSketch,
                                  .create = NewSelector};

}  // namespace tokenbutler
