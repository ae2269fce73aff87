#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace tokenbutler {

// The names of an enum's values, as requests, files and flags write them.
template <typename Enum, size_t kCount>
using EnumNames = std::array<std::pair<std::string_view, Enum>, kCount>;

// "" for a value that is not in the table.
template <typename Enum, size_t kCount>
std::string_view EnumName(const EnumNames<Enum, kCount>& names, Enum value) {
  for (const auto& [name, entry] : names) {
    if (entry == value) return name;
  }
  return "";
}

// INVALID_ARGUMENT naming `field`, the text's first 64 bytes and every name there is.
template <typename Enum, size_t kCount>
absl::StatusOr<Enum> ParseEnum(const EnumNames<Enum, kCount>& names, std::string_view field,
                               std::string_view text) {
  std::string known;
  for (const auto& [name, entry] : names) {
    if (name == text) return entry;
    known += known.empty() ? "" : ", ";
    known += name;
  }
  return InvalidArgumentError("{} is \"{}\", must be one of {}", field, text.substr(0, 64), known);
}

}  // namespace tokenbutler
