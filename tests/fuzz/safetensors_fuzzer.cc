// Any bytes as a .safetensors file, and as the JSON of a config.json.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/models/architectures.h"
#include "engine/models/json_fields.h"
#include "engine/weights/generation_defaults.h"
#include "engine/weights/safetensors.h"

namespace tokenbutler {
namespace {

void FuzzTensors(absl::Span<const std::byte> bytes) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Parse(bytes);
  if (!file.ok()) return;
  volatile uint8_t last = 0;
  for (const SafetensorsTensor& tensor : file->tensors()) {
    for (const std::byte b : tensor.data) last = static_cast<uint8_t>(b);
    if (file->FindTensor(tensor.name) != &tensor) __builtin_trap();
  }
  (void)last;
}

void FuzzConfig(std::string_view text) {
  const absl::StatusOr<JsonFields> fields = JsonFields::Parse(text, "config.json");
  if (!fields.ok()) return;
  (void)ReadHfGeneration(*fields, 100).ok();
  const absl::StatusOr<const Architecture*> architecture = FindHfArchitecture(*fields);
  if (architecture.ok()) (void)ReadHfConfig(**architecture, *fields).ok();
}

}  // namespace
}  // namespace tokenbutler

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tokenbutler::FuzzTensors({reinterpret_cast<const std::byte*>(data), size});
  tokenbutler::FuzzConfig({reinterpret_cast<const char*>(data), size});
  return 0;
}
