#pragma once

#include <cstdint>
#include <string>

#include "engine/tokenizer/tokenizer.h"

namespace tokenbutler {

// Decodes one sequence token by token. Whatever the ids, every returned piece is well-formed UTF-8
// and the pieces, with that of Finish, concatenate to Tokenizer::Decode of all ids. Bytes whose
// character is not complete are held back; of SentencePiece's byte tokens the whole run is, since
// a later ill-formed byte changes what the earlier ones decode to. One per sequence; not
// thread-safe.
class IncrementalDecoder {
 public:
  // `tokenizer` must outlive this.
  IncrementalDecoder(const Tokenizer* tokenizer, bool skip_special_tokens);

  // The text that became certain with `id`; may be empty.
  // REQUIRES: Finish was not called.
  std::string Push(int32_t id);

  // The text that was held back, ill-formed sequences as U+FFFD.
  std::string Finish();

 private:
  // `text` without the leading space that decoding drops.
  std::string Emit(std::string text);
  std::string TakeByteRun();
  std::string TakeWholeCharacters();

  const Tokenizer* tokenizer_;
  const bool skip_special_tokens_;
  bool at_start_ = true;  // nothing was returned yet
  std::string held_;      // bytes not yet returned: an incomplete character, or a byte run
  bool held_is_byte_run_ = false;
};

}  // namespace tokenbutler
