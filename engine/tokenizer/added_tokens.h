#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "engine/tokenizer/tokenizer_spec.h"

namespace tokenbutler {

// A piece of a text: an added token, or a stretch of ordinary text between two.
struct TextSection {
  int32_t id = -1;            // of the added token; -1: ordinary text
  size_t begin = 0, end = 0;  // bytes [begin, end) of the text
};

// Finds a set of added tokens in a text: the leftmost, and the longest of those that begin at the
// same place, by a trie over bytes.
class AddedTokenMatcher {
 public:
  struct Options {
    bool parse_special = false;
    // No special token is found that overlaps one of these (ascending, disjoint byte ranges).
    absl::Span<const std::pair<size_t, size_t>> literal_spans = {};
  };

  // Later tokens win over earlier ones of the same content; those without content are ignored.
  explicit AddedTokenMatcher(absl::Span<const AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // The sections of `text` in order, none empty. Follows Hugging Face in the details: a special
  // token that may not be parsed, or a single_word token inside a word, still uses up its text, so
  // that no other token is found in it; white space next to tokens with lstrip and rstrip
  // belongs to their section. REQUIRES: well-formed UTF-8.
  std::vector<TextSection> Split(std::string_view text, const Options& options) const;

 private:
  struct Match {
    int32_t token = -1;  // index into tokens_
    size_t end = 0;
  };

  static uint64_t EdgeKey(int32_t node, char byte) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
  }
  Match LongestAt(std::string_view text, size_t begin, const Options& options,
                  size_t first_span) const;

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<uint64_t, int32_t> edges_;  // (node, byte) -> node
  std::vector<int32_t> token_at_;                 // node -> index into tokens_, or -1
  std::vector<bool> begins_;                      // byte -> some token begins with it
};

}  // namespace tokenbutler
