#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tokenbutler {

// A .safetensors file from its JSON header and its data section, whatever they say.
inline std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += header;
  file += data;
  return file;
}

}  // namespace tokenbutler
