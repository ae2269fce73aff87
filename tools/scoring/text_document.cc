#include "tools/scoring/text_document.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "fmt/format.h"

namespace tokenbutler {

absl::StatusOr<TextDocument> ReadTextDocument(const std::string& path, int num_tokens,
                                              const MeasuredModel& model) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad() || !in.is_open()) return NotFoundError("{} cannot be read", path);
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  TextDocument document{.name = std::filesystem::path(path).filename().string(),
                        .fingerprint = fmt::format("{:016x}", Fingerprint({bytes, text.size()})),
                        .tokens = model.Encode(text)};
  if (static_cast<int>(document.tokens.size()) < num_tokens) {
    return InvalidArgumentError("{} has {} tokens, must have at least {}", path,
                                document.tokens.size(), num_tokens);
  }
  document.tokens.resize(num_tokens);
  return document;
}

uint64_t Fingerprint(absl::Span<const std::byte> bytes, uint64_t begin) {
  uint64_t hash = begin;
  for (const std::byte byte : bytes) {
    hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace tokenbutler
