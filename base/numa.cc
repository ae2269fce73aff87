#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <fstream>
#include <string>

namespace tokenbutler {
namespace {

constexpr int kMaxNodes = 1024;

}  // namespace

std::vector<int> ParseNodeList(std::string_view list) {
  while (!list.empty() && (list.back() == '\n' || list.back() == ' ')) list.remove_suffix(1);
  std::vector<int> nodes;
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at != end) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) return {};
    int last = first;
    if (parsed.ptr != end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
      if (parsed.ec != std::errc()) return {};
    }
    if (first < 0 || last < first || last >= kMaxNodes) return {};
    for (int node = first; node <= last; ++node) nodes.push_back(node);
    at = parsed.ptr;
    if (at == end) break;
    if (*at != ',' || ++at == end) return {};
  }
  return nodes;
}

std::vector<int> MemoryNodes(const std::filesystem::path& root) {
  std::ifstream file(root / "sys/devices/system/node/has_memory");
  std::string line;
  if (!std::getline(file, line)) return {};
  return ParseNodeList(line);
}

bool PlacePages(void* data, size_t bytes, NumaPlacement placement, absl::Span<const int> nodes) {
  if (placement == NumaPlacement::kFirstTouch || nodes.size() < 2 || bytes == 0) return true;
  constexpr int kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, kMaxNodes / kBits> mask = {};
  for (const int node : nodes) mask[static_cast<size_t>(node / kBits)] |= 1ul << (node % kBits);
  return syscall(SYS_mbind, data, bytes, MPOL_INTERLEAVE, mask.data(), kMaxNodes + 1, 0) == 0;
}

}  // namespace tokenbutler
