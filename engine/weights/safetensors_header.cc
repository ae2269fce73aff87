#include "engine/weights/safetensors_header.h"

#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "nlohmann/json.hpp"

namespace tokenbutler {
namespace {

struct TypeEntry {
  std::string_view name;
  SafetensorsType type;
  int bytes;
};
constexpr std::array kTypes = {
    TypeEntry{"BOOL", SafetensorsType::kBool, 1},
    TypeEntry{"U8", SafetensorsType::kU8, 1},
    TypeEntry{"I8", SafetensorsType::kI8, 1},
    TypeEntry{"F8_E5M2", SafetensorsType::kF8E5M2, 1},
    TypeEntry{"F8_E4M3", SafetensorsType::kF8E4M3, 1},
    TypeEntry{"I16", SafetensorsType::kI16, 2},
    TypeEntry{"U16", SafetensorsType::kU16, 2},
    TypeEntry{"F16", SafetensorsType::kF16, 2},
    TypeEntry{"BF16", SafetensorsType::kBF16, 2},
    TypeEntry{"I32", SafetensorsType::kI32, 4},
    TypeEntry{"U32", SafetensorsType::kU32, 4},
    TypeEntry{"F32", SafetensorsType::kF32, 4},
    TypeEntry{"F64", SafetensorsType::kF64, 8},
    TypeEntry{"I64", SafetensorsType::kI64, 8},
    TypeEntry{"U64", SafetensorsType::kU64, 8},
};

const TypeEntry& EntryOf(SafetensorsType type) {
  for (const TypeEntry& entry : kTypes) {
    if (entry.type == type) return entry;
  }
  return kTypes[0];
}

constexpr size_t kMaxRank = 8;
constexpr size_t kMaxNameBytes = 1024;
constexpr std::string_view kMetadataName = "__metadata__";

// Receives the JSON's events in order and follows them with a small state machine. Every method
// returns false to stop, with `status_` saying why.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTensor:  // after a name: its value
        place_ = in_metadata_ ? Place::kMetadata : Place::kFields;
        return true;
      default:
        return Unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    switch (place_) {
      case Place::kTop:
        return StartTensor(name);
      case Place::kFields:
        return StartField(name);
      case Place::kMetadata:
        metadata_key_ = name;
        return true;
      default:
        return Unexpected("a key");
    }
  }

  bool end_object() override {
    switch (place_) {
      case Place::kFields:
        place_ = Place::kTop;
        return FinishTensor();
      case Place::kMetadata:
        place_ = Place::kTop;
        return true;
      default:
        place_ = Place::kEnd;
        return true;
    }
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kShape || place_ == Place::kOffsets) {
      if (in_array_) return Unexpected("an array");
      in_array_ = true;
      return true;
    }
    return Unexpected("an array");
  }

  bool end_array() override {
    in_array_ = false;
    if (place_ == Place::kOffsets && num_offsets_ != 2) {
      return Fail(Error("data_offsets has {} numbers, must have 2", num_offsets_));
    }
    place_ = Place::kFields;
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (!in_array_) return Unexpected("a number");
    return place_ == Place::kShape ? AddDimension(number) : AddOffset(number);
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      if (metadata_.emplace(std::move(metadata_key_), text).second) return true;
      return Fail(InvalidArgumentError("__metadata__ has a key twice"));
    }
    if (place_ != Place::kDtype) return Unexpected("a string");
    place_ = Place::kFields;
    for (const TypeEntry& entry : kTypes) {
      if (entry.name == text) {
        tensor_.type = entry.type;
        return true;
      }
    }
    return Fail(UnimplementedError("tensor '{}': dtype is '{}', which is not known", tensor_.name,
                                   text.substr(0, 32)));
  }

  bool number_integer(number_integer_t number) override {
    return Fail(Error("{} holds {}, must not be negative", FieldName(), number));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Fail(
        Error("{} holds {}, must be an integer below 2^64", FieldName(), text.substr(0, 32)));
  }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& e) override {
    if (status_.ok()) status_ = InvalidArgumentError("the header is not valid JSON: {}", e.what());
    return false;
  }

  const absl::Status& status() const { return status_; }
  std::vector<SafetensorsEntry> TakeEntries() { return std::move(entries_); }
  std::map<std::string, std::string> TakeMetadata() { return std::move(metadata_); }

 private:
  enum class Place {
    kStart,
    kTop,
    kTensor,
    kFields,
    kDtype,
    kShape,
    kOffsets,
    kMetadata,
    kEnd,
  };

  bool Fail(absl::Status status) {
    status_ = std::move(status);
    return false;
  }
  bool Unexpected(std::string_view what) {
    return Fail(Error("{} is {}, which the format does not allow there", FieldName(), what));
  }
  template <typename... Args>
  absl::Status Error(fmt::format_string<Args...> format, Args&&... args) const {
    absl::Status error = InvalidArgumentError(format, std::forward<Args>(args)...);
    if (place_ == Place::kStart || tensor_.name.empty()) return error;
    return Annotate(error, fmt::format("tensor '{}'", tensor_.name.substr(0, 100)));
  }
  std::string_view FieldName() const {
    switch (place_) {
      case Place::kDtype:
        return "dtype";
      case Place::kShape:
        return "shape";
      case Place::kOffsets:
        return "data_offsets";
      case Place::kStart:
        return "the header";
      case Place::kMetadata:
        return "__metadata__";
      default:
        return "the entry";
    }
  }

  bool StartTensor(const std::string& name) {
    tensor_ = {};
    if (name.empty() || name.size() > kMaxNameBytes) {
      return Fail(InvalidArgumentError("a tensor name has {} bytes, must have from 1 to {}",
                                       name.size(), kMaxNameBytes));
    }
    tensor_.name = name;
    in_metadata_ = name == kMetadataName;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    num_offsets_ = 0;
    elements_ = 1;
    place_ = Place::kTensor;
    return true;
  }

  bool StartField(const std::string& name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      place_ = Place::kDtype;
      seen = &has_dtype_;
    } else if (name == "shape") {
      place_ = Place::kShape;
      seen = &has_shape_;
    } else if (name == "data_offsets") {
      place_ = Place::kOffsets;
      seen = &has_offsets_;
    } else {
      return Fail(Error("field '{}' is not known", name.substr(0, 100)));
    }
    if (*seen) return Fail(Error("{} stands twice", FieldName()));
    *seen = true;
    return true;
  }

  bool AddDimension(uint64_t size) {
    if (tensor_.shape.size() == kMaxRank) {
      return Fail(Error("shape has more than {} dimensions", kMaxRank));
    }
    const auto bound = static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / 8) /
                       static_cast<uint64_t>(elements_ > 0 ? elements_ : 1);
    if (size > bound) {
      return Fail(Error("shape holds {}, must be at most {}: the product overflows", size, bound));
    }
    tensor_.shape.push_back(static_cast<int64_t>(size));
    elements_ *= static_cast<int64_t>(size);
    return true;
  }

  bool AddOffset(uint64_t offset) {
    if (num_offsets_ == 2) return Fail(Error("data_offsets has more than 2 numbers"));
    (num_offsets_++ == 0 ? tensor_.begin : tensor_.end) = offset;
    return true;
  }

  bool FinishTensor() {
    if (!has_dtype_) return Fail(Error("dtype is missing"));
    if (!has_shape_) return Fail(Error("shape is missing"));
    if (!has_offsets_) return Fail(Error("data_offsets is missing"));
    const auto bytes = static_cast<uint64_t>(elements_ * EntryOf(tensor_.type).bytes);
    if (tensor_.begin > tensor_.end) {
      return Fail(Error("data_offsets are [{}, {}], begin must not be beyond end", tensor_.begin,
                        tensor_.end));
    }
    if (tensor_.end - tensor_.begin != bytes) {
      return Fail(Error("data_offsets span {} bytes, must span {} for the shape and dtype {}",
                        tensor_.end - tensor_.begin, bytes, EntryOf(tensor_.type).name));
    }
    entries_.push_back(std::move(tensor_));
    tensor_ = {};
    return true;
  }

  Place place_ = Place::kStart;
  bool in_metadata_ = false;
  bool in_array_ = false;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int num_offsets_ = 0;
  int64_t elements_ = 1;
  SafetensorsEntry tensor_;
  std::vector<SafetensorsEntry> entries_;
  std::string metadata_key_;
  std::map<std::string, std::string> metadata_;
  absl::Status status_;
};

}  // namespace

std::string_view SafetensorsTypeName(SafetensorsType type) { return EntryOf(type).name; }

int64_t SafetensorsTypeBytes(SafetensorsType type) { return EntryOf(type).bytes; }

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(
    std::string_view json, std::map<std::string, std::string>* metadata) {
  HeaderReader reader;
  bool parsed = false;
  try {
    parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgumentError("the header is not valid JSON: {}", error.what());
  }
  RETURN_IF_ERROR(reader.status());
  if (!parsed) return InvalidArgumentError("the header is not valid JSON");
  if (metadata != nullptr) *metadata = reader.TakeMetadata();
  return reader.TakeEntries();
}

}  // namespace tokenbutler
