#include "engine/weights/gguf.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "engine/weights/gguf_cursor.h"
#include "engine/weights/gguf_parser.h"

namespace tokenbutler {
namespace {

template <typename T>
T ElementAt(const GgufValue& value, uint64_t i) {
  T element;
  std::memcpy(&element, value.payload.data() + i * sizeof(T), sizeof(T));
  return element;
}

absl::Status WrongType(const GgufValue& value, std::string_view wanted) {
  if (value.type == GgufType::kArray) {
    return InvalidArgumentError("metadata key '{}' is an array of {}, wanted {}", value.key,
                                GgufTypeName(value.element_type), wanted);
  }
  return InvalidArgumentError("metadata key '{}' is of type {}, wanted {}", value.key,
                              GgufTypeName(value.type), wanted);
}

bool IsInteger(GgufType type) {
  return type <= GgufType::kInt32 || type == GgufType::kUint64 || type == GgufType::kInt64;
}

// REQUIRES: IsInteger(value.element_type). INVALID_ARGUMENT for a uint64 beyond int64.
absl::Status IntegerAt(const GgufValue& value, uint64_t i, int64_t* out) {
  switch (value.element_type) {
    case GgufType::kUint8:
      *out = ElementAt<uint8_t>(value, i);
      break;
    case GgufType::kInt8:
      *out = ElementAt<int8_t>(value, i);
      break;
    case GgufType::kUint16:
      *out = ElementAt<uint16_t>(value, i);
      break;
    case GgufType::kInt16:
      *out = ElementAt<int16_t>(value, i);
      break;
    case GgufType::kUint32:
      *out = ElementAt<uint32_t>(value, i);
      break;
    case GgufType::kInt32:
      *out = ElementAt<int32_t>(value, i);
      break;
    case GgufType::kUint64: {
      const auto u = ElementAt<uint64_t>(value, i);
      if (u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return InvalidArgumentError("metadata key '{}' is {}, must be at most {}", value.key, u,
                                    std::numeric_limits<int64_t>::max());
      }
      *out = static_cast<int64_t>(u);
      break;
    }
    default:
      *out = ElementAt<int64_t>(value, i);
  }
  return absl::OkStatus();
}

// What Find<T> does for one T: the name of T for messages, which stored types fit, conversion.
template <typename T>
struct Reading;

template <>
struct Reading<bool> {
  static constexpr std::string_view kName = "bool";
  static bool Fits(GgufType type) { return type == GgufType::kBool; }
  static absl::Status At(const GgufValue& value, uint64_t i, bool* out) {
    *out = ElementAt<uint8_t>(value, i) != 0;
    return absl::OkStatus();
  }
};

template <>
struct Reading<int64_t> {
  static constexpr std::string_view kName = "an integer";
  static bool Fits(GgufType type) { return IsInteger(type); }
  static absl::Status At(const GgufValue& value, uint64_t i, int64_t* out) {
    return IntegerAt(value, i, out);
  }
};

template <>
struct Reading<double> {
  static constexpr std::string_view kName = "float32 or float64";
  static bool Fits(GgufType type) {
    return type == GgufType::kFloat32 || type == GgufType::kFloat64;
  }
  static absl::Status At(const GgufValue& value, uint64_t i, double* out) {
    *out = value.element_type == GgufType::kFloat32 ? ElementAt<float>(value, i)
                                                    : ElementAt<double>(value, i);
    return absl::OkStatus();
  }
};

template <>
struct Reading<float> {
  static constexpr std::string_view kName = "float32";
  static bool Fits(GgufType type) { return type == GgufType::kFloat32; }
  static absl::Status At(const GgufValue& value, uint64_t i, float* out) {
    *out = ElementAt<float>(value, i);
    return absl::OkStatus();
  }
};

template <>
struct Reading<std::string_view> {
  static constexpr std::string_view kName = "string";
  static bool Fits(GgufType type) { return type == GgufType::kString; }
};

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {
  using Element = T;
};

// All strings of a checked payload, in order.
absl::Status ReadStrings(const GgufValue& value, std::vector<std::string_view>* out) {
  GgufCursor cursor(value.payload);
  out->reserve(value.count);
  for (uint64_t i = 0; i < value.count; ++i) {
    std::string_view text;
    RETURN_IF_ERROR(cursor.ReadString("string", value.payload.size(), &text));
    out->push_back(text);
  }
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<T> ReadArray(const GgufValue& value) {
  using Element = typename IsVector<T>::Element;
  if (value.type != GgufType::kArray || !Reading<Element>::Fits(value.element_type)) {
    return WrongType(value, fmt::format("an array of {}", Reading<Element>::kName));
  }
  T elements;
  if constexpr (std::is_same_v<Element, std::string_view>) {
    RETURN_IF_ERROR(ReadStrings(value, &elements));
  } else {
    elements.reserve(value.count);
    for (uint64_t i = 0; i < value.count; ++i) {
      Element element{};
      RETURN_IF_ERROR(Reading<Element>::At(value, i, &element));
      elements.push_back(element);
    }
  }
  return elements;
}

template <typename T>
absl::StatusOr<T> ReadScalar(const GgufValue& value) {
  if (value.type == GgufType::kArray || !Reading<T>::Fits(value.type)) {
    return WrongType(value, Reading<T>::kName);
  }
  if constexpr (std::is_same_v<T, std::string_view>) {
    std::vector<std::string_view> strings;
    RETURN_IF_ERROR(ReadStrings(value, &strings));
    return strings.front();
  } else {
    T element{};
    RETURN_IF_ERROR(Reading<T>::At(value, 0, &element));
    return element;
  }
}

template <typename T, typename NameOf>
const T* FindSorted(const std::vector<T>& items, const std::vector<uint32_t>& order,
                    std::string_view name, NameOf name_of) {
  const auto it = std::lower_bound(
      order.begin(), order.end(), name,
      [&](uint32_t index, std::string_view wanted) { return name_of(items[index]) < wanted; });
  if (it == order.end() || name_of(items[*it]) != name) return nullptr;
  return &items[*it];
}

}  // namespace

std::string_view GgufTypeName(GgufType type) {
  constexpr std::string_view kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                         "int32",  "float32", "bool",   "string", "array",
                                         "uint64", "int64",   "float64"};
  const auto id = static_cast<size_t>(type);
  return id < std::size(kNames) ? kNames[id] : "unknown";
}

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  absl::StatusOr<GgufFile> file = Parse(mapped.bytes());
  if (!file.ok()) return Annotate(file.status(), path);
  file->file_ = std::move(mapped);
  return file;
}

absl::StatusOr<GgufFile> GgufFile::Parse(absl::Span<const std::byte> bytes) {
  return GgufParser(bytes).Parse();
}

const GgufValue* GgufFile::FindValue(std::string_view key) const {
  return FindSorted(metadata_, metadata_by_key_, key, [](const GgufValue& v) { return v.key; });
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  return FindSorted(tensors_, tensors_by_name_, name, [](const GgufTensor& t) { return t.name; });
}

template <typename T>
absl::StatusOr<std::optional<T>> GgufFile::Find(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return std::optional<T>();
  if constexpr (IsVector<T>::value) {
    ASSIGN_OR_RETURN(T elements, ReadArray<T>(*value));
    return std::optional<T>(std::move(elements));
  } else {
    ASSIGN_OR_RETURN(const T scalar, ReadScalar<T>(*value));
    return std::optional<T>(scalar);
  }
}

template absl::StatusOr<std::optional<bool>> GgufFile::Find(std::string_view) const;
template absl::StatusOr<std::optional<int64_t>> GgufFile::Find(std::string_view) const;
template absl::StatusOr<std::optional<double>> GgufFile::Find(std::string_view) const;
template absl::StatusOr<std::optional<std::string_view>> GgufFile::Find(std::string_view) const;
template absl::StatusOr<std::optional<std::vector<bool>>> GgufFile::Find(std::string_view) const;
template absl::StatusOr<std::optional<std::vector<int64_t>>> GgufFile::Find(std::string_view) const;
template absl::StatusOr<std::optional<std::vector<float>>> GgufFile::Find(std::string_view) const;
template absl::StatusOr<std::optional<std::vector<std::string_view>>> GgufFile::Find(
    std::string_view) const;

}  // namespace tokenbutler
