#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/bpe_merge.h"
#include "engine/tokenizer/tokenizer_spec.h"

namespace tokenbutler {

// The bytes that a byte-level token stands for: GPT-2 writes each byte as a printable character
// ("Ġ" for the space). A token with any other character in it stands for itself.
std::string BytesOfByteLevelToken(std::string_view token);

// Byte-pair encoding over bytes (GPT-2, Llama 3, Qwen2, SmolLM2): pre-tokens to ids. Immutable.
class ByteLevelBpe {
 public:
  // `token_bytes`: BytesOfByteLevelToken of each token; both must outlive the result. Errors are
  // those of BuildListedMerges.
  static absl::StatusOr<ByteLevelBpe> Create(const TokenizerSpec& spec,
                                             const std::vector<std::string>& token_bytes);

  const MergeTable& merges() const { return merges_; }

  // Appends the ids of one pre-token. Bytes for which there is no token are left out (or become the
  // unknown token when the spec says so), as in Hugging Face. `symbols` is working memory.
  void EncodeWord(std::string_view word, BpeMerger* merger, std::vector<int32_t>* symbols,
                  std::vector<int32_t>* ids) const;

 private:
  ByteLevelBpe() = default;

  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;  // byte -> id of its token, or what stands in for it, or -1
  // Whole pre-tokens taken as they are (bytes -> id); empty unless ignore_merges.
  std::unordered_map<std::string_view, int32_t> whole_words_;
};

}  // namespace tokenbutler
