#include "engine/stop_matcher.h"

#include <algorithm>
#include <map>

namespace tokenbutler {

StopMatcher::StopMatcher(const std::vector<std::string>& strings) {
  // A trie first, each node's children in a sorted map; then flattened breadth first, so that a
  // node's failure link always points to an earlier one.
  struct TrieNode {
    std::map<uint8_t, int32_t> children;
    int32_t string_index = -1;
  };
  std::vector<TrieNode> trie(1);
  for (size_t index = 0; index < strings.size(); ++index) {
    if (strings[index].empty()) continue;
    int32_t node = 0;
    for (char c : strings[index]) {
      const auto [child, inserted] =
          trie[node].children.try_emplace(static_cast<uint8_t>(c), trie.size());
      node = child->second;
      if (inserted) trie.emplace_back();
    }
    if (trie[node].string_index < 0) trie[node].string_index = static_cast<int32_t>(index);
  }

  nodes_.reserve(trie.size());
  edges_.reserve(trie.size());
  std::vector<int32_t> order = {0};  // trie node of each flattened one
  nodes_.emplace_back();
  for (size_t i = 0; i < order.size(); ++i) {
    const TrieNode& source = trie[order[i]];
    nodes_[i].string_index = source.string_index;
    nodes_[i].first_edge = static_cast<int32_t>(edges_.size());
    nodes_[i].num_edges = static_cast<int32_t>(source.children.size());
    for (const auto& [byte, child] : source.children) {
      edges_.push_back({byte, static_cast<int32_t>(nodes_.size())});
      nodes_.emplace_back().depth = nodes_[i].depth + 1;
      order.push_back(child);
    }
  }
  Link();
}

void StopMatcher::Link() {
  for (int32_t parent = 0; parent < static_cast<int32_t>(nodes_.size()); ++parent) {
    const Node node = nodes_[parent];
    for (int32_t e = node.first_edge; e < node.first_edge + node.num_edges; ++e) {
      Node& child = nodes_[edges_[e].target];
      int32_t suffix = parent;
      int32_t target = -1;
      while (suffix != 0 && target < 0) {
        suffix = nodes_[suffix].fail;
        target = Child(suffix, edges_[e].byte);
      }
      child.fail = std::max(target, 0);
      child.match_node = child.string_index >= 0 ? edges_[e].target : nodes_[child.fail].match_node;
    }
  }
}

int32_t StopMatcher::Child(int32_t node, uint8_t byte) const {
  const auto begin = edges_.begin() + nodes_[node].first_edge;
  const auto end = begin + nodes_[node].num_edges;
  const auto edge = std::lower_bound(begin, end, byte, [](const Edge& candidate, uint8_t value) {
    return candidate.byte < value;
  });
  return edge != end && edge->byte == byte ? edge->target : -1;
}

std::optional<StopMatcher::Match> StopMatcher::Advance(std::string_view piece, bool report) {
  for (size_t i = 0; i < piece.size(); ++i) {
    const auto byte = static_cast<uint8_t>(piece[i]);
    int32_t next = Child(state_, byte);
    while (next < 0 && state_ != 0) {
      state_ = nodes_[state_].fail;
      next = Child(state_, byte);
    }
    state_ = std::max(next, 0);
    if (const int32_t match = nodes_[state_].match_node; report && match != 0) {
      return Match{i + 1, nodes_[match].depth, nodes_[match].string_index};
    }
  }
  return std::nullopt;
}

}  // namespace tokenbutler
