#pragma once

namespace tokenbutler {

inline constexpr char kVersion[] = TOKENBUTLER_VERSION;  // of CMakeLists.txt

}  // namespace tokenbutler
