#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tokenbutler {

// Finds the first of several stop strings in a text that arrives in pieces (Aho & Corasick,
// "Efficient string matching", CACM 1975): time linear in the text whatever the number and length
// of the strings, memory linear in their total length. Values only; no thread rules.
class StopMatcher {
 public:
  struct Match {
    size_t end = 0;        // offset in the piece just after the match
    size_t length = 0;     // of the stop string: it began `length` bytes before `end`
    int string_index = 0;  // in the list given at construction
  };

  // Empty strings never match.
  explicit StopMatcher(const std::vector<std::string>& strings);

  // Reads a piece. Returns the match that ends first (the longest of those that end together), or
  // nothing when the piece completes no string; after a match the rest of the piece is not read.
  // With `report` off matches are passed over, but a string that begins here may end later.
  std::optional<Match> Advance(std::string_view piece, bool report = true);

  // How many of the bytes read last may still turn out to begin a stop string.
  size_t held_back() const { return nodes_[state_].depth; }

 private:
  struct Edge {
    uint8_t byte;
    int32_t target;
  };
  struct Node {
    int32_t first_edge = 0;  // edges_[first_edge, first_edge + num_edges), ascending by byte
    int32_t num_edges = 0;
    int32_t fail = 0;        // the longest proper suffix that is a prefix of a stop string
    uint32_t depth = 0;      // bytes from the root
    int32_t match_node = 0;  // nearest of self, fail, fail of fail ... that ends a string; 0: none
    int32_t string_index = -1;
  };

  int32_t Child(int32_t node, uint8_t byte) const;  // -1: none
  void Link();

  std::vector<Node> nodes_;  // [0] is the root; breadth first
  std::vector<Edge> edges_;
  int32_t state_ = 0;
};

}  // namespace tokenbutler
