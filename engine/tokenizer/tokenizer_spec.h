#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tokenbutler {

// A step that cuts text into pieces which merges never cross. Steps run in order, each on the
// pieces of the one before. The regular expressions behind the names are in pre_tokenizer.h.
enum class PreTokenizerStep {
  kDigits,  // every digit alone
  kGpt2,
  kLlama3,
  kQwen2,
  kTekken,
};

// A token that is found in the text before anything else happens to it.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // a control token: skipped by Decode, found only with parse_special
  bool normalized = false;   // looked for in the normalised text rather than in the original
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // and after it
  bool single_word = false;  // not beside a word character
};

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
  // Where SentencePiece's "▁" is put in front of the text.
  enum class SpacePrefix {
    kEverySection,     // before each stretch of text between added tokens (the Prepend normaliser)
    kMetaspaceAlways,  // the same, unless it begins with a space already
    kMetaspaceFirst,   // before the first stretch only, unless it begins with a space already
  };

  Kind kind = Kind::kByteLevelBpe;
  std::vector<std::string> tokens;     // id -> token as stored in the file
  std::vector<float> scores;           // id -> score; empty for byte-level BPE
  std::vector<TokenType> token_types;  // id -> type; empty means all normal
  std::vector<std::string> merges;     // "left right", by rank; empty for SentencePiece by score
  // GGUF's `tokenizer.ggml.pre` ("smollm", "qwen2", "llama-bpe", "default" ...). It also decides on
  // `nfc` and `ignore_merges`. An unknown name is refused, never guessed. Empty when
  // `pre_tokenizer_steps` came from tokenizer.json, and for SentencePiece.
  std::string pre_tokenizer;
  std::optional<int32_t> bos_id, eos_id, unk_id, pad_id, eot_id;
  std::optional<bool> add_bos, add_eos;
  bool add_space_prefix = true;  // SentencePiece's add_dummy_prefix
  bool ignore_merges = false;    // a whole pre-token that is in the vocabulary is taken as it is

  // What only tokenizer.json says. The defaults are right for GGUF.
  std::vector<PreTokenizerStep> pre_tokenizer_steps;
  bool nfc = false;  // normalise to NFC first
  // Unset: control, unknown and user-defined tokens of `token_types`.
  std::optional<std::vector<AddedToken>> added_tokens;
  // Ids before and after every text; unset: BOS and EOS as add_bos and add_eos say.
  std::optional<std::vector<int32_t>> prefix_ids, suffix_ids;
  SpacePrefix space_prefix = SpacePrefix::kEverySection;  // with add_space_prefix
  std::optional<bool> strips_leading_space;               // of decoding; unset: as add_space_prefix
  bool byte_fallback = true;           // SentencePiece: unknown characters as <0xNN> tokens
  bool byte_level_unk = false;         // byte-level BPE: bytes without a token are unk_id
  bool fuse_unk = true;                // a run of unknown characters is one unknown token
  std::vector<int32_t> extra_eos_ids;  // further ids that end a generation
};

}  // namespace tokenbutler
