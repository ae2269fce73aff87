#include "engine/weights/ggml_type.h"

#include <array>

namespace tokenbutler {
namespace {

// Block sizes: ggml-common.h. A k-quant super-block holds 256 elements.
constexpr std::array kTypes = {
    GgmlTypeTraits{GgmlType::kF32, "F32", 1, 4},
    GgmlTypeTraits{GgmlType::kF16, "F16", 1, 2},
    GgmlTypeTraits{GgmlType::kBF16, "BF16", 1, 2},
    GgmlTypeTraits{GgmlType::kQ4_0, "Q4_0", 32, 2 + 16},
    GgmlTypeTraits{GgmlType::kQ4_1, "Q4_1", 32, 2 + 2 + 16},
    GgmlTypeTraits{GgmlType::kQ5_0, "Q5_0", 32, 2 + 4 + 16},
    GgmlTypeTraits{GgmlType::kQ5_1, "Q5_1", 32, 2 + 2 + 4 + 16},
    GgmlTypeTraits{GgmlType::kQ8_0, "Q8_0", 32, 2 + 32},
    GgmlTypeTraits{GgmlType::kQ2_K, "Q2_K", 256, 16 + 64 + 2 + 2},
    GgmlTypeTraits{GgmlType::kQ3_K, "Q3_K", 256, 32 + 64 + 12 + 2},
    GgmlTypeTraits{GgmlType::kQ4_K, "Q4_K", 256, 2 + 2 + 12 + 128},
    GgmlTypeTraits{GgmlType::kQ5_K, "Q5_K", 256, 2 + 2 + 12 + 32 + 128},
    GgmlTypeTraits{GgmlType::kQ6_K, "Q6_K", 256, 128 + 64 + 16 + 2},
    GgmlTypeTraits{GgmlType::kQ8_K, "Q8_K", 256, 4 + 256 + 32},
};

struct UnreadType {
  uint32_t id;
  std::string_view name;
};
constexpr std::array kUnreadTypes = {
    UnreadType{9, "Q8_1"},     UnreadType{16, "IQ2_XXS"}, UnreadType{17, "IQ2_XS"},
    UnreadType{18, "IQ3_XXS"}, UnreadType{19, "IQ1_S"},   UnreadType{20, "IQ4_NL"},
    UnreadType{21, "IQ3_S"},   UnreadType{22, "IQ2_S"},   UnreadType{23, "IQ4_XS"},
    UnreadType{24, "I8"},      UnreadType{25, "I16"},     UnreadType{26, "I32"},
    UnreadType{27, "I64"},     UnreadType{28, "F64"},     UnreadType{29, "IQ1_M"},
    UnreadType{34, "TQ1_0"},   UnreadType{35, "TQ2_0"},   UnreadType{39, "MXFP4"},
};

}  // namespace

const GgmlTypeTraits* FindGgmlType(uint32_t id) {
  for (const GgmlTypeTraits& traits : kTypes) {
    if (static_cast<uint32_t>(traits.type) == id) return &traits;
  }
  return nullptr;
}

std::string_view GgmlTypeNameOf(uint32_t id) {
  if (const GgmlTypeTraits* traits = FindGgmlType(id)) return traits->name;
  for (const UnreadType& type : kUnreadTypes) {
    if (type.id == id) return type.name;
  }
  return "unknown";
}

const GgmlTypeTraits& TraitsOf(GgmlType type) {
  const GgmlTypeTraits* traits = FindGgmlType(static_cast<uint32_t>(type));
  return traits != nullptr ? *traits : kTypes[0];
}

}  // namespace tokenbutler
