#include "engine/model_text.h"

#include <utility>
#include <variant>

#include "engine/tokenizer/tokenizer_json.h"

namespace tokenbutler {
namespace {

absl::StatusOr<TokenizerSpec> TakeTokenizer(LoadedModel* model) {
  if (auto* own = std::get_if<TokenizerSpec>(&model->tokenizer)) return std::move(*own);
  const auto* files = std::get_if<HfTokenizerFiles>(&model->tokenizer);
  if (files == nullptr) {
    return InvalidArgumentError(
        "the model has no tokenizer: a folder needs tokenizer.json, a GGUF file the keys "
        "tokenizer.ggml.*");
  }
  ASSIGN_OR_RETURN(HfTokenizer hf,
                   ReadHfTokenizer(files->tokenizer_json, files->tokenizer_config_json));
  hf.spec.extra_eos_ids.insert(hf.spec.extra_eos_ids.end(), model->generation.eos_ids.begin(),
                               model->generation.eos_ids.end());
  if (hf.chat_template) model->chat_template = std::move(hf.chat_template);
  if (!hf.bos_token.empty()) model->bos_token = std::move(hf.bos_token);
  if (!hf.eos_token.empty()) model->eos_token = std::move(hf.eos_token);
  return std::move(hf.spec);
}

}  // namespace

absl::StatusOr<ModelText> TakeModelText(LoadedModel* model) {
  ModelText text;
  ASSIGN_OR_RETURN(TokenizerSpec spec, TakeTokenizer(model));
  ASSIGN_OR_RETURN(text.tokenizer, Tokenizer::Create(std::move(spec)));
  for (const int32_t id : text.tokenizer->eos_ids()) {
    if (id < model->config.vocab_size) continue;
    return InvalidArgumentError(
        "the tokenizer ends a text with token id {}, must be in [0, {}), the model's vocabulary: "
        "do tokenizer and weights belong together?",
        id, model->config.vocab_size);
  }
  if (!model->chat_template) return text;
  TemplateOptions options;
  options.bos_token = model->bos_token;
  options.eos_token = model->eos_token;
  auto compiled = ChatTemplate::Compile(*model->chat_template, std::move(options));
  if (compiled.ok()) {
    text.chat_template = *std::move(compiled);
  } else {
    text.chat_template_error = std::string(compiled.status().message());
  }
  return text;
}

absl::StatusOr<ModelText> LoadModelText(const std::string& path) {
  LoadOptions options;
  options.without_weights = true;
  ASSIGN_OR_RETURN(LoadedModel model, LoadModel(path, options));
  return TakeModelText(&model);
}

}  // namespace tokenbutler
