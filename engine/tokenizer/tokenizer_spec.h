#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tokenbutler {

// A tokenizer as data: what a model file says about it, before anything is built from it.
// Filled by the GGUF loader or from tokenizer.json; Tokenizer::Create checks and builds.
struct TokenizerSpec {
  enum class Kind {
    kByteLevelBpe,      // GPT-2 style: "gpt2" in GGUF, BPE + ByteLevel in tokenizer.json
    kSentencePieceBpe,  // "llama" in GGUF: BPE by score with byte fallback and "▁" for spaces
  };
  // GGUF's token types (also what tokenizer.json's added_tokens map to).
  enum class TokenType : int32_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,      // special: never produced from plain user text
    kUserDefined = 4,  // matched in text as a whole, but not special
    kUnused = 5,
    kByte = 6,
  };

  Kind kind = Kind::kByteLevelBpe;
  std::vector<std::string> tokens;     // id -> token as stored in the file
  std::vector<float> scores;           // id -> score; empty for byte-level BPE
  std::vector<TokenType> token_types;  // id -> type; empty means all normal
  std::vector<std::string> merges;     // "left right", by rank; empty for SentencePiece by score
  // GGUF's `tokenizer.ggml.pre` ("smollm", "qwen2", "llama-bpe", "default" ...); empty when
  // `pre_tokenizer_regex` came from tokenizer.json. An unknown name is refused, never guessed.
  std::string pre_tokenizer;
  std::optional<int32_t> bos_id, eos_id, unk_id, pad_id, eot_id;
  std::optional<bool> add_bos, add_eos;
  bool add_space_prefix = true;  // SentencePiece's add_dummy_prefix
  bool ignore_merges = false;    // a whole pre-token that is in the vocabulary is taken as it is
};

}  // namespace tokenbutler
