#pragma once

#include <cstdlib>
#include <string>

namespace tokenbutler {

// Where a file of the download cache, which scripts/setup fills, is or would be: below
// $TOKENBUTLER_CACHE, else ~/.cache/tokenbutler.
inline std::string CachePath(const std::string& file) {
  if (const char* cache = std::getenv("TOKENBUTLER_CACHE"); cache != nullptr) {
    return std::string(cache) + "/" + file;
  }
  const char* home = std::getenv("HOME");
  return std::string(home == nullptr ? "" : home) + "/.cache/tokenbutler/" + file;
}

inline std::string CachedModelPath(const std::string& file) { return CachePath("models/" + file); }

}  // namespace tokenbutler
