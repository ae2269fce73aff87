#include "engine/tokenizer/bpe_vocabulary.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "engine/tokenizer/unicode.h"

namespace tokenbutler {

TokenIds IndexTokens(const TokenizerSpec& spec) {
  TokenIds ids;
  ids.reserve(spec.tokens.size());
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    ids[spec.tokens[i]] = static_cast<int32_t>(i);
  }
  return ids;
}

int32_t FindToken(const TokenIds& ids, std::string_view token) {
  const auto it = ids.find(token);
  return it == ids.end() ? -1 : it->second;
}

absl::StatusOr<MergeTable> BuildListedMerges(const TokenizerSpec& spec, const TokenIds& ids) {
  MergeTable table;
  table.Reserve(spec.merges.size());
  std::string merged;
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const std::string_view merge = spec.merges[rank];
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos) {
      return InvalidArgumentError("merges[{}] is '{}', must be two tokens and a space between them",
                                  rank, ReplaceIllFormedUtf8(merge));
    }
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    merged.assign(left).append(right);
    const int32_t left_id = FindToken(ids, left);
    const int32_t right_id = FindToken(ids, right);
    const int32_t merged_id = FindToken(ids, merged);
    if (left_id < 0 || right_id < 0 || merged_id < 0) {
      const std::string_view missing = left_id < 0 ? left : right_id < 0 ? right : merged;
      return InvalidArgumentError("merges[{}] needs the token '{}', which is not in the vocabulary",
                                  rank, ReplaceIllFormedUtf8(missing));
    }
    table.Add(left_id, right_id, {.rank = static_cast<int32_t>(rank), .merged_id = merged_id});
  }
  return table;
}

MergeTable BuildScoredMerges(const TokenizerSpec& spec, const TokenIds& ids) {
  struct ScoredMerge {
    float score;
    int32_t left_length, right_length;  // code points
    int32_t left, right, merged;
  };
  std::vector<ScoredMerge> merges;
  std::vector<ScoredMerge> of_token;
  for (const std::string& token : spec.tokens) {
    // Of equal tokens one counts, as a dictionary would have it.
    const int32_t merged = FindToken(ids, token);
    if (&spec.tokens[merged] != &token) continue;
    int32_t length = 0;
    for (size_t i = 0; i < token.size(); i += ReadUtf8(token, i).length) ++length;
    of_token.clear();
    const std::string_view text = token;
    int32_t left_length = 1;
    for (size_t i = ReadUtf8(text, 0).length; i < text.size(); i += ReadUtf8(text, i).length) {
      const int32_t left = FindToken(ids, text.substr(0, i));
      const int32_t right = left < 0 ? -1 : FindToken(ids, text.substr(i));
      if (right >= 0) {
        of_token.push_back({.score = spec.scores[merged],
                            .left_length = left_length,
                            .right_length = length - left_length,
                            .left = left,
                            .right = right,
                            .merged = merged});
      }
      ++left_length;
    }
    std::sort(of_token.begin(), of_token.end(), [](const ScoredMerge& a, const ScoredMerge& b) {
      return std::tie(a.left, a.right) < std::tie(b.left, b.right);
    });
    merges.insert(merges.end(), of_token.begin(), of_token.end());
  }
  std::stable_sort(merges.begin(), merges.end(), [](const ScoredMerge& a, const ScoredMerge& b) {
    return std::tie(a.score, a.left_length, a.right_length) >
           std::tie(b.score, b.left_length, b.right_length);
  });
  MergeTable table;
  table.Reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    table.Add(merges[rank].left, merges[rank].right,
              {.rank = static_cast<int32_t>(rank), .merged_id = merges[rank].merged});
  }
  return table;
}

}  // namespace tokenbutler
