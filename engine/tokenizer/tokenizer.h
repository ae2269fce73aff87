#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "engine/tokenizer/tokenizer_spec.h"

namespace tokenbutler {

// Text <-> token ids, equal to Hugging Face's tokenizers on every input. Immutable after
// Create; every method may be called from any number of threads at once.
class Tokenizer {
 public:
  struct EncodeOptions {
    bool add_special_tokens = true;  // BOS/EOS as the model file asks
    // Text that looks like a control token becomes that token. Off for user content, on for the
    // output of a chat template.
    bool parse_special = false;
    // Byte ranges [begin, end) of the text, ascending and disjoint, in which nothing is a control
    // token although parse_special is on: an occurrence that overlaps one stays text. A rendered
    // chat passes RenderedPrompt::content_spans here, so that a message cannot forge a turn. The
    // ranges have no other effect: merges go across their borders. Only read during the call.
    absl::Span<const std::pair<size_t, size_t>> literal_spans = {};
  };

  // INVALID_ARGUMENT naming the field for a spec that contradicts itself, UNIMPLEMENTED for a
  // pre-tokenizer that is not known.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerSpec spec);
  virtual ~Tokenizer() = default;

  // Linear in text.size(). Invalid UTF-8 is encoded as Hugging Face would encode its lossy
  // decoding (each ill-formed sequence as U+FFFD).
  virtual std::vector<int32_t> Encode(std::string_view text, EncodeOptions options) const = 0;

  // The whole text of `ids`; ill-formed UTF-8 in the result is replaced by U+FFFD as
  // Hugging Face does. Ids that are no token have no text: a model may have more rows than its
  // tokenizer has tokens.
  virtual std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const = 0;

  // The raw bytes that `id` stands for inside a text (not always whole UTF-8); empty for an id that
  // is no token.
  virtual std::string_view TokenBytes(int32_t id) const = 0;

  virtual bool IsSpecial(int32_t id) const = 0;  // control tokens
  // A SentencePiece "<0xNN>" token: TokenBytes is the one byte. Decoding takes a run of them as a
  // whole: it is text if well-formed, else each byte is U+FFFD.
  virtual bool IsByteFallback(int32_t /*id*/) const { return false; }
  virtual int vocab_size() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  // Every id that ends a generation: EOS, end of turn.
  virtual absl::Span<const int32_t> eos_ids() const = 0;
  // True when decoding drops the first space of a text (SentencePiece).
  virtual bool strips_leading_space() const = 0;
};

}  // namespace tokenbutler
