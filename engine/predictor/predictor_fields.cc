#include "engine/predictor/predictor_fields.h"

#include <charconv>
#include <cmath>
#include <vector>

#include "engine/predictor/predictor.h"

namespace tokenbutler {
namespace {

constexpr size_t kDigestDigits = 64;

absl::StatusOr<std::string_view> Find(const PredictorFields& fields, const std::string& key) {
  const auto at = fields.find(key);
  if (at == fields.end()) return InvalidArgumentError("metadata: {} is missing", key);
  return at->second;
}

absl::Status NotA(std::string_view what, std::string_view key, std::string_view text) {
  return InvalidArgumentError("metadata: {} is \"{}\", must be {}", key, text.substr(0, 64), what);
}

template <typename Number>
bool ParseNumber(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

absl::Status ReadInt(const PredictorFields& fields, const std::string& key, int* out) {
  ASSIGN_OR_RETURN(const std::string_view text, Find(fields, key));
  if (!ParseNumber(text, out)) return NotA("an integer", key, text);
  return absl::OkStatus();
}

absl::Status ReadFloat(const PredictorFields& fields, const std::string& key, float* out) {
  ASSIGN_OR_RETURN(const std::string_view text, Find(fields, key));
  if (!ParseNumber(text, out) || !std::isfinite(*out)) return NotA("a number", key, text);
  return absl::OkStatus();
}

absl::Status ReadBool(const PredictorFields& fields, const std::string& key, bool* out) {
  ASSIGN_OR_RETURN(const std::string_view text, Find(fields, key));
  if (text != "true" && text != "false") return NotA("true or false", key, text);
  *out = text == "true";
  return absl::OkStatus();
}

// The parts of a text between commas; none of an empty one.
std::vector<std::string_view> Parts(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return parts;
}

absl::Status ReadFloats(const PredictorFields& fields, const std::string& key,
                        std::vector<float>* out) {
  ASSIGN_OR_RETURN(const std::string_view text, Find(fields, key));
  for (const std::string_view part : Parts(text)) {
    float value = 0;
    if (!ParseNumber(part, &value) || !std::isfinite(value)) {
      return NotA("numbers separated by commas", key, text);
    }
    out->push_back(value);
  }
  return absl::OkStatus();
}

absl::Status ReadDigests(const PredictorFields& fields, std::vector<std::string>* out) {
  ASSIGN_OR_RETURN(const std::string_view text, Find(fields, "model_sha256"));
  for (const std::string_view part : Parts(text)) {
    const bool is_digest = part.size() == kDigestDigits &&
                           part.find_first_not_of("0123456789abcdef") == std::string_view::npos;
    if (!is_digest) {
      return NotA("SHA-256 digests of 64 lower-case hexadecimal digits, separated by commas",
                  "model_sha256", text);
    }
    out->emplace_back(part);
  }
  return absl::OkStatus();
}

absl::Status ReadFingerprint(const PredictorFields& fields, ModelFingerprint* f) {
  ASSIGN_OR_RETURN(const std::string_view architecture, Find(fields, "architecture"));
  f->architecture = architecture;
  RETURN_IF_ERROR(ReadInt(fields, "num_layers", &f->num_layers));
  RETURN_IF_ERROR(ReadInt(fields, "hidden_size", &f->hidden_size));
  RETURN_IF_ERROR(ReadInt(fields, "intermediate_size", &f->intermediate_size));
  RETURN_IF_ERROR(ReadInt(fields, "num_heads", &f->num_heads));
  RETURN_IF_ERROR(ReadInt(fields, "num_kv_heads", &f->num_kv_heads));
  RETURN_IF_ERROR(ReadInt(fields, "head_dim", &f->head_dim));
  RETURN_IF_ERROR(ReadBool(fields, "qkv_bias", &f->qkv_bias));
  RETURN_IF_ERROR(ReadFloat(fields, "rms_norm_eps", &f->rms_norm_eps));
  RETURN_IF_ERROR(ReadFloat(fields, "rope_attention_factor", &f->rope_attention_factor));
  return ReadFloats(fields, "rope_inverse_frequencies", &f->rope_inverse_frequencies);
}

absl::Status CheckFormat(const PredictorFields& fields) {
  ASSIGN_OR_RETURN(const std::string_view format, Find(fields, "format"));
  if (format != kPredictorFormat) {
    return NotA(fmt::format("\"{}\"", kPredictorFormat), "format", format);
  }
  int version = 0;
  RETURN_IF_ERROR(ReadInt(fields, "format_version", &version));
  if (version == kPredictorFormatVersion) return absl::OkStatus();
  return UnimplementedError("metadata: format_version is {}, this program reads {}", version,
                            kPredictorFormatVersion);
}

}  // namespace

PredictorFields ToPredictorFields(const Predictor& p) {
  const ModelFingerprint& f = p.fingerprint;
  PredictorFields fields = {
      {"format", std::string(kPredictorFormat)},
      {"format_version", fmt::to_string(kPredictorFormatVersion)},
      {"kind", std::string(PredictorKindName(p.kind))},
      {"projected_dim", fmt::to_string(p.projected_dim)},
      {"pooling", std::string(ScorePoolingName(p.pooling))},
      {"late_projections", p.late_projection.empty() ? "false" : "true"},
      {"model_sha256", fmt::format("{}", fmt::join(p.model_sha256, ","))},
      {"architecture", f.architecture},
      {"num_layers", fmt::to_string(f.num_layers)},
      {"hidden_size", fmt::to_string(f.hidden_size)},
      {"intermediate_size", fmt::to_string(f.intermediate_size)},
      {"num_heads", fmt::to_string(f.num_heads)},
      {"num_kv_heads", fmt::to_string(f.num_kv_heads)},
      {"head_dim", fmt::to_string(f.head_dim)},
      {"qkv_bias", f.qkv_bias ? "true" : "false"},
      {"rms_norm_eps", fmt::format("{}", f.rms_norm_eps)},
      {"rope_attention_factor", fmt::format("{}", f.rope_attention_factor)},
      {"rope_inverse_frequencies", fmt::format("{}", fmt::join(f.rope_inverse_frequencies, ","))},
  };
  if (p.kind != PredictorKind::kPca) {
    fields["layers_per_predictor"] = fmt::to_string(p.layers_per_predictor);
  }
  if (p.kind == PredictorKind::kTokenButler) {
    fields["hidden_dim"] = fmt::to_string(p.hidden_dim);
    fields["input"] = PredictorInputName(p.input);
  }
  if (p.kind == PredictorKind::kLookahead) {
    fields["lookahead_point"] = LayerPointName(p.lookahead_point);
    fields["correction_rank"] = fmt::to_string(p.correction_rank);
  }
  return fields;
}

absl::StatusOr<Predictor> FromPredictorFields(const PredictorFields& fields) {
  RETURN_IF_ERROR(CheckFormat(fields));
  Predictor p;
  ASSIGN_OR_RETURN(const std::string_view kind, Find(fields, "kind"));
  ASSIGN_OR_RETURN(p.kind, ParsePredictorKind(kind));
  ASSIGN_OR_RETURN(const std::string_view pooling, Find(fields, "pooling"));
  ASSIGN_OR_RETURN(p.pooling, ParseScorePooling(pooling));
  RETURN_IF_ERROR(ReadInt(fields, "projected_dim", &p.projected_dim));
  if (p.kind != PredictorKind::kPca) {
    RETURN_IF_ERROR(ReadInt(fields, "layers_per_predictor", &p.layers_per_predictor));
  }
  if (p.kind == PredictorKind::kTokenButler) {
    RETURN_IF_ERROR(ReadInt(fields, "hidden_dim", &p.hidden_dim));
    ASSIGN_OR_RETURN(const std::string_view input, Find(fields, "input"));
    ASSIGN_OR_RETURN(p.input, ParsePredictorInput(input));
  }
  if (p.kind == PredictorKind::kLookahead) {
    ASSIGN_OR_RETURN(const std::string_view point, Find(fields, "lookahead_point"));
    ASSIGN_OR_RETURN(p.lookahead_point, ParseLayerPoint(point));
    RETURN_IF_ERROR(ReadInt(fields, "correction_rank", &p.correction_rank));
  }
  RETURN_IF_ERROR(ReadFingerprint(fields, &p.fingerprint));
  RETURN_IF_ERROR(ReadDigests(fields, &p.model_sha256));
  return p;
}

absl::StatusOr<bool> HasLateProjections(const PredictorFields& fields) {
  bool has_late = false;
  RETURN_IF_ERROR(ReadBool(fields, "late_projections", &has_late));
  return has_late;
}

}  // namespace tokenbutler
