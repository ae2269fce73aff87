#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <utility>

#include "engine/tokenizer/json_field.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace tokenbutler {
namespace {

// A token of the configuration: a string, or an object with its content; empty when there is none.
absl::StatusOr<std::string> ReadToken(const JsonField& config, std::string_view key) {
  const std::optional<JsonField> field = config.Find(key);
  if (!field.has_value()) return std::string();
  if (field->is_object()) {
    ASSIGN_OR_RETURN(const std::string_view content, field->GetString("content"));
    return std::string(content);
  }
  ASSIGN_OR_RETURN(const std::string_view content, field->AsString());
  return std::string(content);
}

// The id of the configuration's token `key`, or nullopt when the configuration has none.
absl::StatusOr<std::optional<int32_t>> FindRole(const TokenizerSpec& spec, std::string_view key,
                                                std::string_view token) {
  if (token.empty()) return std::nullopt;
  const auto it = std::find(spec.tokens.begin(), spec.tokens.end(), token);
  if (it == spec.tokens.end()) {
    return InvalidArgumentError("{} is '{}', which is not a token of tokenizer.json", key, token);
  }
  return static_cast<int32_t>(it - spec.tokens.begin());
}

// transformers' Llama tokenizers put their own BOS and EOS around a text, whatever post_processor
// says.
absl::Status ApplyLlamaClass(const JsonField& config, TokenizerSpec* spec) {
  const std::optional<JsonField> class_field = config.Find("tokenizer_class");
  if (!class_field.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string_view name, class_field->AsString());
  if (name != "LlamaTokenizer" && name != "LlamaTokenizerFast") return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool add_bos, config.GetBool("add_bos_token", true));
  ASSIGN_OR_RETURN(const bool add_eos, config.GetBool("add_eos_token", false));
  spec->prefix_ids.emplace();
  spec->suffix_ids.emplace();
  if (add_bos) {
    if (!spec->bos_id.has_value()) {
      return InvalidArgumentError("bos_token is missing, must be there with add_bos_token");
    }
    spec->prefix_ids->push_back(*spec->bos_id);
  }
  if (add_eos) {
    if (!spec->eos_id.has_value()) {
      return InvalidArgumentError("eos_token is missing, must be there with add_eos_token");
    }
    spec->suffix_ids->push_back(*spec->eos_id);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> ReadChatTemplate(const JsonField& config) {
  const std::optional<JsonField> field = config.Find("chat_template");
  if (!field.has_value()) return std::nullopt;
  if (!field->is_array()) {
    ASSIGN_OR_RETURN(const std::string_view source, field->AsString());
    return std::string(source);
  }
  for (size_t i = 0; i < field->size(); ++i) {
    ASSIGN_OR_RETURN(const std::string_view name, field->At(i).GetString("name"));
    ASSIGN_OR_RETURN(const std::string_view source, field->At(i).GetString("template"));
    if (name == "default") return std::string(source);
  }
  return std::nullopt;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFoundError("{}: cannot be read", path);
  std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return NotFoundError("{}: cannot be read", path);
  return content;
}

}  // namespace

absl::StatusOr<HfTokenizer> ApplyTokenizerConfig(TokenizerSpec spec, std::string_view config_json) {
  ASSIGN_OR_RETURN(const nlohmann::json root, ParseJson(config_json, "tokenizer_config.json"));
  const JsonField config(&root, "");
  RETURN_IF_ERROR(config.CheckObject());
  HfTokenizer result;
  ASSIGN_OR_RETURN(result.bos_token, ReadToken(config, "bos_token"));
  ASSIGN_OR_RETURN(result.eos_token, ReadToken(config, "eos_token"));
  ASSIGN_OR_RETURN(spec.bos_id, FindRole(spec, "bos_token", result.bos_token));
  ASSIGN_OR_RETURN(spec.eos_id, FindRole(spec, "eos_token", result.eos_token));
  RETURN_IF_ERROR(ApplyLlamaClass(config, &spec));
  ASSIGN_OR_RETURN(result.chat_template, ReadChatTemplate(config));
  result.spec = std::move(spec);
  return result;
}

absl::StatusOr<HfTokenizer> ReadHfTokenizer(const std::string& tokenizer_path,
                                            const std::string& config_path) {
  ASSIGN_OR_RETURN(const std::string json, ReadFile(tokenizer_path));
  absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(json);
  if (!spec.ok()) return Annotate(spec.status(), tokenizer_path);
  HfTokenizer result;
  if (config_path.empty()) {
    result.spec = *std::move(spec);
  } else {
    ASSIGN_OR_RETURN(const std::string config, ReadFile(config_path));
    absl::StatusOr<HfTokenizer> completed = ApplyTokenizerConfig(*std::move(spec), config);
    if (!completed.ok()) return Annotate(completed.status(), config_path);
    result = *std::move(completed);
  }
  const size_t slash = tokenizer_path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : tokenizer_path.substr(0, slash + 1);
  absl::StatusOr<std::string> chat_template = ReadFile(folder + "chat_template.jinja");
  if (chat_template.ok()) result.chat_template = *std::move(chat_template);
  return result;
}

}  // namespace tokenbutler
