#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "engine/chat_template/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/loader.h"

namespace tokenbutler {

// How a model reads and writes text.
struct ModelText {
  std::unique_ptr<Tokenizer> tokenizer;         // not null
  std::unique_ptr<ChatTemplate> chat_template;  // null: there is none, or none that can be used
  std::string chat_template_error = {};         // why it cannot be used
};

// Takes the text's parts out of a loaded model, whose chat_template, bos_token and eos_token are
// then those of the tokenizer's files where these have their own. INVALID_ARGUMENT when it has no
// tokenizer, or one that ends texts with a token outside of the vocabulary; errors of the
// tokenizer.
absl::StatusOr<ModelText> TakeModelText(LoadedModel* model);

// Those of a .gguf file or a Hugging Face folder, without loading its weights.
absl::StatusOr<ModelText> LoadModelText(const std::string& path);

}  // namespace tokenbutler
