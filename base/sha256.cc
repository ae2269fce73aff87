#include "base/sha256.h"

#include <array>

#include "fmt/format.h"
#include "openssl/sha.h"

namespace tokenbutler {

std::string Sha256Hex(absl::Span<const std::byte> bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  std::string text;
  text.reserve(2 * digest.size());
  for (const unsigned char byte : digest) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

}  // namespace tokenbutler
