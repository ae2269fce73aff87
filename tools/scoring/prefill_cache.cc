#include "tools/scoring/prefill_cache.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <vector>

#include "base/dtype.h"
#include "fmt/format.h"
#include "tools/scoring/text_document.h"

namespace tokenbutler {

std::string PrefillCache::PathOf(absl::Span<const int32_t> tokens) const {
  const auto* bytes = reinterpret_cast<const std::byte*>(tokens.data());
  // Rows of one type may have been computed in another.
  std::string dtypes(DTypeName(measured_.layout().dtype));
  if (measured_.runner().compute_dtype() != measured_.layout().dtype) {
    dtypes = fmt::format("{}-of-{}", dtypes, DTypeName(measured_.runner().compute_dtype()));
  }
  std::string rope = measured_.rope_scaling();
  std::erase(rope, ' ');
  const int block_size = measured_.layout().block_size;
  return fmt::format("{}/{}-{}-rope-{}{}-{:016x}.kv", folder_, model_, dtypes, rope,
                     block_size == KvLayout().block_size ? "" : fmt::format("-b{}", block_size),
                     Fingerprint({bytes, tokens.size() * sizeof(int32_t)}));
}

std::shared_ptr<const PromptRows> PrefillCache::Load(absl::Span<const int32_t> tokens) const {
  if (folder_.empty()) return nullptr;
  auto rows = std::make_shared<PromptRows>();
  rows->num_tokens = static_cast<int>(tokens.size());
  const size_t size = static_cast<size_t>(measured_.layout().blocks_for(rows->num_tokens)) *
                      measured_.layout().block_bytes();
  const std::string path = PathOf(tokens);
  std::error_code error;
  if (std::filesystem::file_size(path, error) != size + sizeof(uint64_t)) return nullptr;
  rows->blocks.resize(size);
  std::ifstream in(path, std::ios::binary);
  in.read(reinterpret_cast<char*>(rows->blocks.data()), static_cast<std::streamsize>(size));
  uint64_t fingerprint = 0;
  in.read(reinterpret_cast<char*>(&fingerprint), sizeof(fingerprint));
  if (in && fingerprint == Fingerprint(rows->blocks)) return rows;
  fmt::print(stderr, "{} is damaged: prefilled again\n", path);
  return nullptr;
}

absl::Status PrefillCache::Store(absl::Span<const int32_t> tokens, const BlockTable& table) const {
  if (folder_.empty()) return absl::OkStatus();
  const KvLayout& layout = measured_.layout();
  const std::string path = PathOf(tokens);
  const std::string part = fmt::format("{}.{}.part", path, getpid());  // others may write it, too
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  std::ofstream out(part, std::ios::binary);
  uint64_t fingerprint = Fingerprint({});
  std::vector<std::byte> block(layout.block_bytes());
  for (int b = 0; b < layout.blocks_for(static_cast<int>(tokens.size())); ++b) {
    measured_.store().ReadBlock(table.blocks[b], absl::MakeSpan(block));
    fingerprint = Fingerprint(block, fingerprint);
    out.write(reinterpret_cast<const char*>(block.data()),
              static_cast<std::streamsize>(block.size()));
  }
  out.write(reinterpret_cast<const char*>(&fingerprint), sizeof(fingerprint));
  out.close();
  if (out) std::filesystem::rename(part, path, error);
  if (!out || error) return InternalError("cannot write {}", path);
  return absl::OkStatus();
}

}  // namespace tokenbutler
