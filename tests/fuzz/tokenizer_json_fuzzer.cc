// A tokenizer.json that may be anything: parsing neither crashes nor takes memory it does not need,
// and a tokenizer that comes of it encodes and decodes within its vocabulary.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/incremental_decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"
#include "engine/tokenizer/unicode.h"

namespace tokenbutler {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void Exercise(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {false, true}) {
    const std::vector<int32_t> ids = tokenizer.Encode(text, {.parse_special = parse_special});
    for (const int32_t id : ids) Require(id >= 0 && id < tokenizer.vocab_size());
    const std::string decoded = tokenizer.Decode(ids, parse_special);
    Require(IsWellFormedUtf8(decoded));
    IncrementalDecoder decoder(&tokenizer, parse_special);
    std::string streamed;
    for (const int32_t id : ids) streamed += decoder.Push(id);
    streamed += decoder.Finish();
    Require(streamed == decoded);
  }
}

}  // namespace
}  // namespace tokenbutler

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokenbutler;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  // The text to encode comes after a zero byte.
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(std::min(end + 1, input.size()));
  absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(input.substr(0, end));
  if (!spec.ok()) return 0;
  (void)ApplyTokenizerConfig(*spec, text);
  const auto tokenizer = Tokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return 0;
  Exercise(**tokenizer, text);
  Exercise(**tokenizer, "It's  <s> 12\xFF e\u0301\u0316 \u4E2D</s>\n a");
  return 0;
}
