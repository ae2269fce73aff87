#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/tokenizer/tokenizer.h"

namespace tokenbutler {

// Decodes one sequence token by token. Whatever the ids, every returned piece is well-formed UTF-8
// and the pieces, with that of Finish, concatenate to Tokenizer::Decode of all ids. Bytes whose
// character is not complete are held back; of SentencePiece's byte tokens the whole run is, since
// a later ill-formed byte changes what the earlier ones decode to. Allocates only for pieces longer
// than all before. One per sequence; not thread-safe.
class IncrementalDecoder {
 public:
  // `tokenizer` must outlive this.
  IncrementalDecoder(const Tokenizer* tokenizer, bool skip_special_tokens);

  // The text that became certain with `id`; may be empty. Valid until the next call.
  // REQUIRES: Finish was not called.
  std::string_view Push(int32_t id);

  // The text that was held back, ill-formed sequences as U+FFFD. Valid as that of Push.
  std::string_view Finish();

 private:
  // text_ without the leading space that decoding drops.
  std::string_view Emit();
  // Move what is held to the end of text_.
  void TakeByteRun();
  void TakeWholeCharacters();

  const Tokenizer* tokenizer_;
  const bool skip_special_tokens_;
  bool at_start_ = true;  // nothing was returned yet
  std::string held_;      // bytes not yet returned: an incomplete character, or a byte run
  bool held_is_byte_run_ = false;
  std::string text_;  // what the present call returns
};

}  // namespace tokenbutler
