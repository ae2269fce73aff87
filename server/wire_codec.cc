#include "server/wire_codec.h"

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "base/status_details.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"

namespace tokenbutler {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kMaxDepth = 100;  // protobuf's own recursion limit

bool IsContinuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

// Bytes of the well-formed UTF-8 sequence that begins at text[at] (Unicode, table 3-7); 0 if none.
size_t SequenceBytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : uint8_t{0};
  };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return IsContinuation(byte(1)) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const uint8_t low = first == 0xE0 ? 0xA0 : 0x80;
    const uint8_t high = first == 0xED ? 0x9F : 0xBF;
    return byte(1) >= low && byte(1) <= high && IsContinuation(byte(2)) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const uint8_t low = first == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = first == 0xF4 ? 0x8F : 0xBF;
    const bool valid =
        byte(1) >= low && byte(1) <= high && IsContinuation(byte(2)) && IsContinuation(byte(3));
    return valid ? 4 : 0;
  }
  return 0;
}

std::optional<size_t> FirstInvalidByte(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = SequenceBytes(text, at);
    if (bytes == 0) return at;
    at += bytes;
  }
  return std::nullopt;
}

struct BadString {
  std::string path;
  size_t position = 0;
};

std::optional<BadString> FindBadString(const Descriptor* type, std::string_view bytes,
                                       const std::string& prefix, int depth);

// What field `field` holds, given its bytes.
std::optional<BadString> CheckField(const FieldDescriptor* field, std::string_view bytes,
                                    const std::string& path, int depth) {
  if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
    return FindBadString(field->message_type(), bytes, path + ".", depth + 1);
  }
  if (field->type() != FieldDescriptor::TYPE_STRING) return std::nullopt;
  const std::optional<size_t> position = FirstInvalidByte(bytes);
  if (!position) return std::nullopt;
  return BadString{.path = path, .position = *position};
}

// Walks the wire format of a message that did not parse.
std::optional<BadString> FindBadString(const Descriptor* type, std::string_view bytes,
                                       const std::string& prefix, int depth) {
  if (depth > kMaxDepth) return std::nullopt;
  google::protobuf::io::ArrayInputStream array(bytes.data(), static_cast<int>(bytes.size()));
  CodedInputStream input(&array);
  std::unordered_map<int, int> seen;  // repeated field -> entries so far
  while (const uint32_t tag = input.ReadTag()) {
    const FieldDescriptor* field = type->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool delimited =
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (field == nullptr || !delimited) {
      if (!WireFormatLite::SkipField(&input, tag)) return std::nullopt;
      continue;
    }
    uint32_t size = 0;
    if (!input.ReadVarint32(&size)) return std::nullopt;
    const size_t at = static_cast<size_t>(input.CurrentPosition());
    if (size > bytes.size() - at) return std::nullopt;
    std::string path = prefix + field->name();
    if (field->is_repeated()) path += fmt::format("[{}]", seen[field->number()]++);
    if (auto bad = CheckField(field, bytes.substr(at, size), path, depth)) return bad;
    input.Skip(static_cast<int>(size));
  }
  return std::nullopt;
}

std::string Flatten(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string flat;
  if (!bytes.Dump(&slices).ok()) return flat;
  for (const grpc::Slice& slice : slices) {
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return flat;
}

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  if (!bytes.Valid()) return absl::OkStatus();  // an empty message
  {
    // The reader consumes what it reads, so it gets a copy (of references, not of bytes).
    grpc::ByteBuffer copy(bytes);
    grpc::ProtoBufferReader reader(&copy);
    if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  }
  const std::string flat = Flatten(bytes);
  if (const auto bad = FindBadString(message->GetDescriptor(), flat, "", 0)) {
    return WithField(
        InvalidArgumentError("{} is not UTF-8 at byte {}, must be UTF-8", bad->path, bad->position),
        bad->path);
  }
  return InvalidArgumentError("the request's {} bytes are no {}", flat.size(),
                              message->GetDescriptor()->full_name());
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace tokenbutler
