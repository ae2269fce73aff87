#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/tokenizer/tokenizer_spec.h"

namespace tokenbutler {

// Reads Hugging Face's tokenizer.json. The document may be anything at all: every field is checked
// before it is used.
//
// Understood are BPE models with
//   normalizer      null, NFC, Prepend "▁", Replace " " by "▁", Sequence of these
//   pre_tokenizer   ByteLevel, Split by a known pattern (pre_tokenizer.h), Digits, Metaspace,
//                   Sequence of these
//   post_processor  null, ByteLevel, TemplateProcessing, Sequence of these
//   decoder         ByteLevel; Sequence of Replace, ByteFallback, Fuse and Strip
// INVALID_ARGUMENT naming a field that is wrong, UNIMPLEMENTED naming one that asks for more.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view json);

// A Hugging Face tokenizer with what tokenizer_config.json adds to it.
struct HfTokenizer {
  TokenizerSpec spec;
  std::string bos_token, eos_token;          // their text; empty when there is none
  std::optional<std::string> chat_template;  // Jinja source
};

// Completes a tokenizer by tokenizer_config.json: BOS, EOS and the other roles, add_bos_token and
// add_eos_token (which only the Llama classes of transformers heed), and the chat template (of
// several, the one named "default"). Errors as ParseTokenizerJson.
absl::StatusOr<HfTokenizer> ApplyTokenizerConfig(TokenizerSpec spec, std::string_view config_json);

// Reads both files and, beside them, chat_template.jinja, which has precedence over the template in
// the configuration. `config_path` may be empty. Errors are prefixed with the path; NOT_FOUND for a
// file that cannot be read.
absl::StatusOr<HfTokenizer> ReadHfTokenizer(const std::string& tokenizer_path,
                                            const std::string& config_path);

}  // namespace tokenbutler
