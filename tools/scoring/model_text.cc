#include "tools/scoring/model_text.h"

#include <cstdio>
#include <utility>
#include <variant>

#include "engine/tokenizer/tokenizer_json.h"
#include "fmt/format.h"

namespace tokenbutler {

absl::StatusOr<ModelText> TakeModelText(LoadedModel* model) {
  ModelText text;
  TokenizerSpec spec;
  if (const auto* files = std::get_if<HfTokenizerFiles>(&model->tokenizer)) {
    ASSIGN_OR_RETURN(HfTokenizer hf,
                     ReadHfTokenizer(files->tokenizer_json, files->tokenizer_config_json));
    spec = std::move(hf.spec);
    spec.extra_eos_ids.insert(spec.extra_eos_ids.end(), model->generation.eos_ids.begin(),
                              model->generation.eos_ids.end());
    if (hf.chat_template) model->chat_template = std::move(hf.chat_template);
    if (!hf.bos_token.empty()) model->bos_token = std::move(hf.bos_token);
    if (!hf.eos_token.empty()) model->eos_token = std::move(hf.eos_token);
  } else if (auto* own = std::get_if<TokenizerSpec>(&model->tokenizer)) {
    spec = std::move(*own);
  } else {
    return InvalidArgumentError("the model has no tokenizer");
  }
  ASSIGN_OR_RETURN(text.tokenizer, Tokenizer::Create(std::move(spec)));
  if (!model->chat_template) return text;
  TemplateOptions options;
  options.bos_token = model->bos_token;
  options.eos_token = model->eos_token;
  auto compiled = ChatTemplate::Compile(*model->chat_template, std::move(options));
  if (compiled.ok()) {
    text.chat_template = *std::move(compiled);
  } else {
    fmt::print(stderr, "the model's chat template cannot be used: {}\n",
               std::string(compiled.status().message()));
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
