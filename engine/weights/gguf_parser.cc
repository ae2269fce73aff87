#include "engine/weights/gguf_parser.h"

#include <algorithm>
#include <limits>
#include <string>

namespace tokenbutler {
namespace {

constexpr uint64_t kMaxKeyBytes = 65535;      // the specification's bound
constexpr uint64_t kMaxTensorNameBytes = 64;  // the specification's bound
constexpr uint64_t kMaxEntries = 1 << 20;     // of metadata and of tensors; real files have < 10^5
constexpr uint32_t kMinAlignment = 8;
constexpr uint32_t kMaxAlignment = 1 << 20;
// The least that one entry takes in the file: what a count is checked against.
constexpr uint64_t kMinMetadataBytes = 8 + 1 + 4 + 1;        // key, type, one-byte value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, rank, 1 dim, type, offset
constexpr std::string_view kAlignmentKey = "general.alignment";

// Bytes of one stored element; 0 for strings and arrays, whose size varies.
uint64_t FixedBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

bool IsGgufType(uint32_t id) { return id <= static_cast<uint32_t>(GgufType::kFloat64); }

// REQUIRES: n is an offset in the file or a little more, so that nothing overflows.
uint64_t AlignUp(uint64_t n, uint64_t alignment) {
  return (n + alignment - 1) / alignment * alignment;
}

// `value`, with control and non-ASCII bytes shown as '?', short: names in messages come from files.
std::string Printable(std::string_view value) {
  std::string text(value.substr(0, 100));
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  if (value.size() > text.size()) text += "...";
  return text;
}

// Indices of `items`, sorted by `name_of`; the first index of two equal names in *duplicate.
template <typename T, typename NameOf>
std::vector<uint32_t> SortedByName(const std::vector<T>& items, NameOf name_of,
                                   const T** duplicate) {
  std::vector<uint32_t> order(items.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return name_of(items[a]) < name_of(items[b]); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (name_of(items[order[i - 1]]) == name_of(items[order[i]])) *duplicate = &items[order[i]];
  }
  return order;
}

}  // namespace

absl::Status GgufCursor::AtPlace(const absl::Status& status) const {
  if (section_ == "header") return status;
  if (name_.empty()) return Annotate(status, fmt::format("{} {}", section_, index_));
  return Annotate(status, fmt::format("{} {} '{}'", section_, index_, Printable(name_)));
}

absl::StatusOr<GgufFile> GgufParser::Parse() {
  RETURN_IF_ERROR(ParseHeader());
  RETURN_IF_ERROR(ParseMetadata());
  RETURN_IF_ERROR(ReadAlignment());
  RETURN_IF_ERROR(ParseTensorInfos());
  RETURN_IF_ERROR(PlaceTensors());
  RETURN_IF_ERROR(CheckCoverage());
  return std::move(file_);
}

absl::Status GgufParser::ParseHeader() {
  absl::Span<const std::byte> magic;
  RETURN_IF_ERROR(cursor_.Take("magic", 4, &magic));
  const std::string_view magic_text(reinterpret_cast<const char*>(magic.data()), 4);
  if (magic_text != "GGUF") {
    return cursor_.Error("magic is '{}', must be 'GGUF'", Printable(magic_text));
  }
  RETURN_IF_ERROR(cursor_.Read("version", &file_.version_));
  if (file_.version_ == 0x02000000u || file_.version_ == 0x03000000u) {
    return UnimplementedError("version is {:#010x}: a big-endian file; only little-endian is read",
                              file_.version_);
  }
  if (file_.version_ != 2 && file_.version_ != 3) {
    return UnimplementedError("version is {}, must be 2 or 3", file_.version_);
  }
  RETURN_IF_ERROR(cursor_.Read("tensor_count", &tensor_count_));
  RETURN_IF_ERROR(cursor_.Read("metadata_kv_count", &metadata_count_));
  RETURN_IF_ERROR(CheckCount("tensor_count", tensor_count_, kMinTensorBytes));
  return CheckCount("metadata_kv_count", metadata_count_, kMinMetadataBytes);
}

absl::Status GgufParser::CheckCount(std::string_view field, uint64_t count,
                                    uint64_t min_bytes_each) const {
  const uint64_t bound = std::min(cursor_.remaining() / min_bytes_each, kMaxEntries);
  if (count <= bound) return absl::OkStatus();
  return cursor_.Error("{} is {}, must be at most {} (of at least {} bytes each, in {} bytes)",
                       field, count, bound, min_bytes_each, cursor_.remaining());
}

absl::Status GgufParser::ParseMetadata() {
  for (uint64_t i = 0; i < metadata_count_; ++i) {
    cursor_.SetPlace("metadata", i);
    GgufValue value;
    RETURN_IF_ERROR(cursor_.ReadString("key", kMaxKeyBytes, &value.key));
    if (value.key.empty()) return cursor_.Error("key length is 0, must be at least 1");
    cursor_.SetName(value.key);
    RETURN_IF_ERROR(ReadType("value type", &value.type));
    value.element_type = value.type;
    if (value.type == GgufType::kArray) RETURN_IF_ERROR(ReadArrayHead(&value));
    RETURN_IF_ERROR(TakePayload(&value));
    file_.metadata_.push_back(value);
  }
  const GgufValue* duplicate = nullptr;
  file_.metadata_by_key_ = SortedByName(
      file_.metadata_, [](const GgufValue& v) { return v.key; }, &duplicate);
  if (duplicate == nullptr) return absl::OkStatus();
  return InvalidArgumentError("metadata key '{}' stands twice, must be unique",
                              Printable(duplicate->key));
}

absl::Status GgufParser::ReadType(std::string_view field, GgufType* type) {
  uint32_t id = 0;
  RETURN_IF_ERROR(cursor_.Read(field, &id));
  if (!IsGgufType(id)) return cursor_.Error("{} is {}, must be at most 12", field, id);
  *type = static_cast<GgufType>(id);
  return absl::OkStatus();
}

absl::Status GgufParser::ReadArrayHead(GgufValue* value) {
  RETURN_IF_ERROR(ReadType("array element type", &value->element_type));
  RETURN_IF_ERROR(cursor_.Read("array length", &value->count));
  if (value->element_type == GgufType::kArray) {
    return cursor_.AtPlace(
        UnimplementedError("array element type is 9 (array): arrays of arrays are not read"));
  }
  // A string takes at least its 8 bytes of length.
  const uint64_t least = std::max<uint64_t>(FixedBytes(value->element_type), 1);
  const uint64_t each = value->element_type == GgufType::kString ? 8 : least;
  if (value->count > cursor_.remaining() / each) {
    return cursor_.Error("array length is {}, must be at most {} ({} bytes remain)", value->count,
                         cursor_.remaining() / each, cursor_.remaining());
  }
  return absl::OkStatus();
}

absl::Status GgufParser::TakePayload(GgufValue* value) {
  if (value->element_type == GgufType::kString) return TakeStrings(value);
  RETURN_IF_ERROR(
      cursor_.Take("value", value->count * FixedBytes(value->element_type), &value->payload));
  if (value->element_type != GgufType::kBool) return absl::OkStatus();
  for (const std::byte b : value->payload) {
    const auto bits = static_cast<unsigned>(b);
    if (bits > 1) return cursor_.Error("bool value is {}, must be 0 or 1", bits);
  }
  return absl::OkStatus();
}

absl::Status GgufParser::TakeStrings(GgufValue* value) {
  const uint64_t begin = cursor_.offset();
  for (uint64_t i = 0; i < value->count; ++i) {
    std::string_view text;
    RETURN_IF_ERROR(cursor_.ReadString("string", std::numeric_limits<uint64_t>::max(), &text));
  }
  value->payload = bytes_.subspan(begin, cursor_.offset() - begin);
  return absl::OkStatus();
}

absl::Status GgufParser::ReadAlignment() {
  ASSIGN_OR_RETURN(const std::optional<int64_t> alignment, file_.Find<int64_t>(kAlignmentKey));
  if (!alignment.has_value()) return absl::OkStatus();
  if (*alignment < kMinAlignment || *alignment > kMaxAlignment ||
      (*alignment & (*alignment - 1)) != 0) {
    return InvalidArgumentError("{} is {}, must be a power of two from {} to {}", kAlignmentKey,
                                *alignment, kMinAlignment, kMaxAlignment);
  }
  file_.alignment_ = static_cast<uint32_t>(*alignment);
  return absl::OkStatus();
}

absl::Status GgufParser::ParseTensorInfos() {
  for (uint64_t i = 0; i < tensor_count_; ++i) {
    cursor_.SetPlace("tensor", i);
    GgufTensor tensor;
    RETURN_IF_ERROR(cursor_.ReadString("name", kMaxTensorNameBytes, &tensor.name));
    if (tensor.name.empty()) return cursor_.Error("name length is 0, must be at least 1");
    cursor_.SetName(tensor.name);
    RETURN_IF_ERROR(ReadShape(&tensor));
    uint64_t bytes = 0, offset = 0;
    RETURN_IF_ERROR(ReadTensorType(&tensor, &bytes));
    RETURN_IF_ERROR(cursor_.Read("offset", &offset));
    if (offset % file_.alignment_ != 0) {
      return cursor_.Error("offset is {}, must be a multiple of the alignment {}", offset,
                           file_.alignment_);
    }
    file_.tensors_.push_back(tensor);
    ranges_.push_back({offset, bytes, static_cast<uint32_t>(i)});
  }
  const GgufTensor* duplicate = nullptr;
  file_.tensors_by_name_ = SortedByName(
      file_.tensors_, [](const GgufTensor& t) { return t.name; }, &duplicate);
  if (duplicate == nullptr) return absl::OkStatus();
  return InvalidArgumentError("tensor name '{}' stands twice, must be unique",
                              Printable(duplicate->name));
}

absl::Status GgufParser::ReadShape(GgufTensor* tensor) {
  uint32_t rank = 0;
  RETURN_IF_ERROR(cursor_.Read("n_dims", &rank));
  if (rank < 1 || rank > 4) return cursor_.Error("n_dims is {}, must be from 1 to 4", rank);
  tensor->rank = static_cast<int>(rank);
  int64_t elements = 1;
  for (uint32_t d = 0; d < rank; ++d) {
    uint64_t size = 0;
    RETURN_IF_ERROR(cursor_.Read("dimension", &size));
    const auto bound = static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / elements);
    if (size < 1 || size > bound) {
      return cursor_.Error("dimension {} is {}, must be from 1 to {}", d, size, bound);
    }
    tensor->shape[rank - 1 - d] = static_cast<int64_t>(size);
    elements *= static_cast<int64_t>(size);
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadTensorType(GgufTensor* tensor, uint64_t* bytes) {
  uint32_t id = 0;
  RETURN_IF_ERROR(cursor_.Read("type", &id));
  const GgmlTypeTraits* traits = FindGgmlType(id);
  if (traits == nullptr) {
    return cursor_.AtPlace(
        UnimplementedError("type is {} ({}), which is not read (F32, F16, BF16, "
                           "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K..Q6_K, Q8_K)",
                           id, GgmlTypeNameOf(id)));
  }
  tensor->type = traits->type;
  const int64_t row = tensor->shape[tensor->rank - 1];
  if (row % traits->block_elements != 0) {
    return cursor_.Error("dimension 0 is {}, must be a multiple of {} for type {}", row,
                         traits->block_elements, traits->name);
  }
  const auto blocks = static_cast<uint64_t>(tensor->num_elements() / traits->block_elements);
  // The bytes that remain bound the product below, so that it cannot overflow.
  if (blocks > bytes_.size() / static_cast<uint64_t>(traits->block_bytes)) {
    return cursor_.Error(
        "the dimensions make {} elements, more than the file's {} bytes can hold as {}",
        tensor->num_elements(), bytes_.size(), traits->name);
  }
  *bytes = blocks * static_cast<uint64_t>(traits->block_bytes);
  return absl::OkStatus();
}

absl::Status GgufParser::PlaceTensors() {
  const uint64_t data_begin = AlignUp(cursor_.offset(), file_.alignment_);
  data_bytes_ = data_begin < bytes_.size() ? bytes_.size() - data_begin : 0;
  for (const Range& range : ranges_) {
    GgufTensor& tensor = file_.tensors_[range.tensor];
    if (range.offset > data_bytes_ || range.bytes > data_bytes_ - range.offset) {
      return InvalidArgumentError(
          "tensor {} '{}': offset {} + {} bytes lie beyond the file's {} data bytes", range.tensor,
          Printable(tensor.name), range.offset, range.bytes, data_bytes_);
    }
    tensor.data = bytes_.subspan(data_begin + range.offset, range.bytes);
  }
  return absl::OkStatus();
}

absl::Status GgufParser::CheckCoverage() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.offset < b.offset; });
  uint64_t covered = 0, next = 0;
  for (const Range& range : ranges_) {
    if (range.offset != next) {
      return InvalidArgumentError(
          "tensor {} '{}': offset is {}, must be {} (no gap beyond the alignment, no overlap)",
          range.tensor, Printable(file_.tensors_[range.tensor].name), range.offset, next);
    }
    covered = range.offset + range.bytes;
    next = AlignUp(covered, file_.alignment_);
  }
  if (data_bytes_ <= next) return absl::OkStatus();
  return InvalidArgumentError(
      "the {} tensors (tensor_count) cover {} data bytes, but the file has "
      "{}",
      ranges_.size(), covered, data_bytes_);
}

}  // namespace tokenbutler
