#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/weights/gguf.h"

namespace tokenbutler {

// Writes small GGUF files for tests, and remembers where every number of the header stands, so that
// a test can put another one there. Add metadata, then tensors, then Finish once.
class GgufWriter {
 public:
  // A number in the finished file. `label` is what the reader's messages call it, `of` the key or
  // tensor it belongs to.
  struct Field {
    std::string label, of;
    size_t offset = 0;
    size_t bytes = 0;
  };

  uint32_t version = 3;
  // Of the tensors; a file with another one than 32 needs a general.alignment that says so.
  size_t alignment = 32;

  template <typename T>
  void AddNumber(const std::string& key, GgufType type, T value) {
    StartValue(key, type);
    Number(metadata_, "value", key, value);
  }
  void AddUint32(const std::string& key, uint32_t v) { AddNumber(key, GgufType::kUint32, v); }
  void AddFloat(const std::string& key, float v) { AddNumber(key, GgufType::kFloat32, v); }
  void AddBool(const std::string& key, bool v) {
    StartValue(key, GgufType::kBool);
    Number(metadata_, "bool", key, static_cast<uint8_t>(v));
  }
  void AddString(const std::string& key, std::string_view v) {
    StartValue(key, GgufType::kString);
    String(metadata_, "string", key, v);
  }
  template <typename T>
  void AddNumbers(const std::string& key, GgufType type, const std::vector<T>& values) {
    StartArray(key, type, values.size());
    for (const T value : values) Number(metadata_, "value", key, value);
  }
  void AddStrings(const std::string& key, const std::vector<std::string>& values) {
    StartArray(key, GgufType::kString, values.size());
    for (const std::string& value : values) String(metadata_, "string", key, value);
  }

  // `shape` is outermost first, `data` the bytes as stored.
  void AddTensor(const std::string& name, GgmlType type, const std::vector<uint64_t>& shape,
                 std::string_view data) {
    ++num_tensors_;
    String(tensors_, "name", name, name);
    Number(tensors_, "n_dims", name, static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) Number(tensors_, "dimension", name, shape[i]);
    Number(tensors_, "type", name, static_cast<uint32_t>(type));
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    Number(tensors_, "offset", name, static_cast<uint64_t>(data_.size()));
    data_ += data;
  }
  void AddF32Tensor(const std::string& name, const std::vector<uint64_t>& shape,
                    const std::vector<float>& values) {
    AddTensor(name, GgmlType::kF32, shape,
              {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }

  // The whole file.
  std::string Finish() {
    Part head;
    head.bytes = "GGUF";
    Number(head, "version", "", version);
    Number(head, "tensor_count", "", num_tensors_);
    Number(head, "metadata_kv_count", "", num_values_);
    std::string file;
    for (const Part* part : {&head, &metadata_, &tensors_}) {
      for (Field field : part->fields) {
        field.offset += file.size();
        fields_.push_back(field);
      }
      file += part->bytes;
    }
    header_bytes_ = file.size();
    file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data_;
  }

  // After Finish: every number of the header, and where the header ends.
  const std::vector<Field>& fields() const { return fields_; }
  size_t header_bytes() const { return header_bytes_; }

 private:
  struct Part {
    std::string bytes;
    std::vector<Field> fields;
  };

  template <typename T>
  static void Number(Part& part, std::string_view label, std::string_view of, T value) {
    part.fields.push_back({std::string(label), std::string(of), part.bytes.size(), sizeof(T)});
    part.bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  static void String(Part& part, std::string_view label, std::string_view of, std::string_view v) {
    Number(part, std::string(label) + " length", of, static_cast<uint64_t>(v.size()));
    part.bytes += v;
  }
  void StartValue(const std::string& key, GgufType type) {
    ++num_values_;
    String(metadata_, "key", key, key);
    Number(metadata_, "value type", key, static_cast<uint32_t>(type));
  }
  void StartArray(const std::string& key, GgufType type, uint64_t count) {
    StartValue(key, GgufType::kArray);
    Number(metadata_, "array element type", key, static_cast<uint32_t>(type));
    Number(metadata_, "array length", key, count);
  }

  Part metadata_, tensors_;
  std::string data_;
  uint64_t num_values_ = 0, num_tensors_ = 0;
  std::vector<Field> fields_;
  size_t header_bytes_ = 0;
};

inline absl::Span<const std::byte> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace tokenbutler
