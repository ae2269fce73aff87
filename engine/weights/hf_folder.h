#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/models/json_fields.h"
#include "engine/weights/loader.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/tensor_source.h"

namespace tokenbutler {

// A model as Hugging Face keeps it: a folder with config.json, *.safetensors and, where the model
// has them, tokenizer.json, tokenizer_config.json, generation_config.json, chat_template.jinja.
// Immutable; any thread may read.
class HfFolder final : public TensorSource {
 public:
  // NOT_FOUND naming a missing config.json or weights; errors of the files' own readers.
  static absl::StatusOr<HfFolder> Open(const std::string& folder);

  const JsonFields& config() const { return config_; }

  TokenizerSource tokenizer() const;
  // chat_template.jinja, else `chat_template` of tokenizer_config.json (of several named ones, the
  // one called "default").
  absl::StatusOr<std::optional<std::string>> ChatTemplate() const;
  // `field` ("bos_token") of tokenizer_config.json as text, whether it is a string or an object
  // with `content`; empty when it is not there.
  absl::StatusOr<std::string> SpecialToken(std::string_view field) const;
  // generation_config.json, and config.json for the ids that it does not give.
  absl::StatusOr<GenerationDefaults> Generation(int vocab_size) const;

  // TensorSource.
  absl::StatusOr<std::optional<StoredTensor>> FindStored(std::string_view name) const override;
  std::vector<std::string> TensorNamesInFiles() const override;

 private:
  HfFolder(std::string folder, JsonFields config, SafetensorsFolder tensors)
      : folder_(std::move(folder)), config_(std::move(config)), tensors_(std::move(tensors)) {}

  std::string folder_;
  JsonFields config_;
  SafetensorsFolder tensors_;
  std::optional<JsonFields> tokenizer_config_, generation_config_;
};

}  // namespace tokenbutler
