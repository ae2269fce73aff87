#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace tokenbutler {

// On which memory nodes of a machine with several the pages of a region lie.
enum class NumaPlacement {
  kFirstTouch,  // the node of the thread that touches a page first: the system's own way
  kInterleave,  // page by page over all nodes: every thread gets the bandwidth of all of them
};

// Parses the kernel's list format, "0-2,5", to {0, 1, 2, 5}; empty when it is malformed.
std::vector<int> ParseNodeList(std::string_view list);

// The nodes that have memory; empty when the system does not say. `root` is "/" except in tests.
std::vector<int> MemoryNodes(const std::filesystem::path& root = "/");

// Tells the system where the pages of [data, data + bytes) that nobody has touched yet are to lie.
// Nothing to do, and true, for kFirstTouch or with fewer than two `nodes`. False when the system
// does not take the advice, as in containers without CAP_SYS_NICE; the memory is as good as before
// then. `data` is the start of a page.
bool PlacePages(void* data, size_t bytes, NumaPlacement placement, absl::Span<const int> nodes);

}  // namespace tokenbutler
