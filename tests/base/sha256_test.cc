#include "base/sha256.h"

#include <string>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

std::string DigestOf(const std::string& text) {
  return Sha256Hex({reinterpret_cast<const std::byte*>(text.data()), text.size()});
}

// The vectors of FIPS 180-4's examples.
TEST(Sha256Test, KnownDigests) {
  EXPECT_EQ(DigestOf(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(DigestOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(DigestOf(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace
}  // namespace tokenbutler
