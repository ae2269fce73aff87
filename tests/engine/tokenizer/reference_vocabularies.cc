#include "tests/engine/tokenizer/reference_vocabularies.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "engine/tokenizer/unicode.h"
#include "engine/weights/gguf_model.h"
#include "engine/weights/gguf_tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/engine/tokenizer/golden_file.h"
#include "tests/testing/model_cache.h"

namespace tokenbutler {
namespace {

using TokenType = TokenizerSpec::TokenType;

std::string DecodeBase64(std::string_view text) {
  std::string bytes;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    uint32_t value = 0;
    if (c >= 'A' && c <= 'Z') value = c - 'A';
    if (c >= 'a' && c <= 'z') value = c - 'a' + 26;
    if (c >= '0' && c <= '9') value = c - '0' + 52;
    if (c == '+') value = 62;
    if (c == '/') value = 63;
    if (c == '=') break;
    bits = bits << 6 | value;
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes.push_back(static_cast<char>(bits >> num_bits & 0xFF));
    }
  }
  return bytes;
}

// GPT-2's printable character for each byte.
std::string ToByteLevelText(std::string_view bytes) {
  static const std::array<char32_t, 256>& alphabet = *[] {
    auto* characters = new std::array<char32_t, 256>();
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      (*characters)[b] = printable ? static_cast<char32_t>(b) : next++;
    }
    return characters;
  }();
  std::string text;
  for (const char byte : bytes) AppendUtf8(alphabet[static_cast<uint8_t>(byte)], &text);
  return text;
}

// Appends the tokens and what transformers makes of their order: every cut of a token into two
// tokens is a merge, with the rank of the token.
void AppendRankedTokens(const std::vector<std::string>& ranked, TokenizerSpec* spec) {
  std::unordered_map<std::string_view, int32_t> ranks;
  for (size_t i = 0; i < ranked.size(); ++i) ranks[ranked[i]] = static_cast<int32_t>(i);
  const auto rank_of = [&](std::string_view token) {
    const auto it = ranks.find(token);
    return it == ranks.end() ? -1 : it->second;
  };
  for (const std::string& token : ranked) {
    spec->tokens.push_back(ToByteLevelText(token));
    spec->token_types.push_back(TokenType::kNormal);
    std::vector<std::pair<int32_t, int32_t>> cuts;
    for (size_t i = 1; i < token.size(); ++i) {
      const std::pair<int32_t, int32_t> cut(rank_of(std::string_view(token).substr(0, i)),
                                            rank_of(std::string_view(token).substr(i)));
      if (cut.first >= 0 && cut.second >= 0) cuts.push_back(cut);
    }
    std::sort(cuts.begin(), cuts.end());
    for (const auto& [left, right] : cuts) {
      spec->merges.push_back(ToByteLevelText(ranked[left]) + " " + ToByteLevelText(ranked[right]));
    }
  }
}

void AppendControlToken(std::string token, TokenizerSpec* spec) {
  spec->tokens.push_back(std::move(token));
  spec->token_types.push_back(TokenType::kControl);
}

// Reads one field of a protocol buffer message off the front of `message`. Only the wire types that
// SentencePiece models use.
struct WireField {
  uint64_t number = 0;
  uint64_t varint = 0;
  std::string_view bytes;  // length-delimited, or the 4 of a fixed32
};

uint64_t TakeVarint(std::string_view* message) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !message->empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(message->front());
    message->remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

absl::StatusOr<WireField> TakeField(std::string_view* message) {
  const uint64_t tag = TakeVarint(message);
  WireField field;
  field.number = tag >> 3;
  size_t length = 0;
  switch (tag & 7) {
    case 0:
      field.varint = TakeVarint(message);
      return field;
    case 2:
      length = TakeVarint(message);
      break;
    case 5:
      length = 4;
      break;
    default:
      return DataLossError("wire type {} in a SentencePiece model", tag & 7);
  }
  if (length > message->size()) return DataLossError("truncated SentencePiece model");
  field.bytes = message->substr(0, length);
  message->remove_prefix(length);
  return field;
}

}  // namespace

absl::StatusOr<TokenizerSpec> ReadTiktokenVocabulary(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string file, ReadWholeFile(path));
  std::vector<std::string> ranked;
  for (size_t begin = 0; begin < file.size();) {
    const size_t end = std::min(file.find('\n', begin), file.size());
    const std::string_view line = std::string_view(file).substr(begin, end - begin);
    ranked.push_back(DecodeBase64(line.substr(0, line.find(' '))));
    begin = end + 1;
  }
  TokenizerSpec spec;
  spec.pre_tokenizer = "llama-bpe";
  AppendRankedTokens(ranked, &spec);
  std::vector<std::string> special = {"<|begin_of_text|>",
                                      "<|end_of_text|>",
                                      "<|reserved_special_token_0|>",
                                      "<|reserved_special_token_1|>",
                                      "<|finetune_right_pad_id|>",
                                      "<|step_id|>",
                                      "<|start_header_id|>",
                                      "<|end_header_id|>",
                                      "<|eom_id|>",
                                      "<|eot_id|>",
                                      "<|python_tag|>",
                                      "<|image|>"};
  for (int i = 2; special.size() < 256; ++i) {
    special.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  }
  spec.bos_id = static_cast<int32_t>(spec.tokens.size());
  spec.eos_id = *spec.bos_id + 1;
  for (std::string& token : special) AppendControlToken(std::move(token), &spec);
  return spec;
}

absl::StatusOr<TokenizerSpec> ReadTekkenVocabulary(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string file, ReadWholeFile(path));
  const nlohmann::json json = nlohmann::json::parse(file);
  const int num_special = json["config"]["default_num_special_tokens"];
  const int size = json["config"]["default_vocab_size"];
  std::vector<std::string> special = {"<unk>",
                                      "<s>",
                                      "</s>",
                                      "[INST]",
                                      "[/INST]",
                                      "[AVAILABLE_TOOLS]",
                                      "[/AVAILABLE_TOOLS]",
                                      "[TOOL_RESULTS]",
                                      "[/TOOL_RESULTS]",
                                      "[TOOL_CALLS]"};
  while (static_cast<int>(special.size()) < num_special) {
    special.push_back(fmt::format("<SPECIAL_{}>", special.size()));
  }
  TokenizerSpec spec;
  spec.pre_tokenizer = "tekken";
  spec.bos_id = 1;
  spec.eos_id = 2;
  for (std::string& token : special) AppendControlToken(std::move(token), &spec);
  std::vector<std::string> ranked;
  for (int i = 0; i < size - num_special; ++i) {
    ranked.push_back(DecodeBase64(json["vocab"][i]["token_bytes"].get_ref<const std::string&>()));
  }
  AppendRankedTokens(ranked, &spec);
  return spec;
}

absl::StatusOr<TokenizerSpec> ReadSentencePieceVocabulary(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string file, ReadWholeFile(path));
  TokenizerSpec spec;
  spec.kind = TokenizerSpec::Kind::kSentencePieceBpe;
  spec.pre_tokenizer = "default";
  spec.bos_id = 1;
  spec.eos_id = 2;
  for (std::string_view model = file; !model.empty();) {
    ASSIGN_OR_RETURN(const WireField field, TakeField(&model));
    if (field.number != 1) continue;  // trainer and normaliser settings
    std::string token;
    float score = 0;
    TokenType type = TokenType::kNormal;
    for (std::string_view piece = field.bytes; !piece.empty();) {
      ASSIGN_OR_RETURN(const WireField part, TakeField(&piece));
      if (part.number == 1) token = std::string(part.bytes);
      if (part.number == 2) std::memcpy(&score, part.bytes.data(), sizeof(score));
      if (part.number == 3) type = static_cast<TokenType>(part.varint);  // the same numbers
    }
    spec.tokens.push_back(std::move(token));
    spec.scores.push_back(score);
    spec.token_types.push_back(type);
  }
  return spec;
}

absl::StatusOr<TokenizerSpec> ReadReferenceSpec(const std::string& name) {
  struct Source {
    std::string name, file, script;
    absl::StatusOr<TokenizerSpec> (*read)(const std::string& path);
  };
  const auto read_gguf = [](const std::string& path) -> absl::StatusOr<TokenizerSpec> {
    ASSIGN_OR_RETURN(const GgufModel model, GgufModel::Open(path));
    ASSIGN_OR_RETURN(std::optional<TokenizerSpec> spec, ReadGgufTokenizer(model, 1 << 20));
    if (!spec.has_value()) return NotFoundError("{} has no tokenizer", path);
    return *std::move(spec);
  };
  const std::array<Source, 6> sources = {{
      {"smollm2", "models/SmolLM2-135M-Instruct.Q4_1.gguf", "scripts/setup", read_gguf},
      {"qwen2.5", "models/qwen2.5-coder-0.5b-instruct.gguf", "scripts/fetch-test-models",
       read_gguf},
      {"llama-3", "tokenizers/llama-3.tiktoken", "scripts/setup test", ReadTiktokenVocabulary},
      {"mistral-v1", "tokenizers/mistral-v1.model", "scripts/setup test",
       ReadSentencePieceVocabulary},
      {"mistral-v3", "tokenizers/mistral-v3.model", "scripts/setup test",
       ReadSentencePieceVocabulary},
      {"mistral-tekken", "tokenizers/mistral-tekken.json", "scripts/setup test",
       ReadTekkenVocabulary},
  }};
  for (const Source& source : sources) {
    if (source.name != name) continue;
    const std::string path = CachePath(source.file);
    if (!std::filesystem::exists(path)) {
      return NotFoundError("{} is not there: run {} to test with it", path, source.script);
    }
    return source.read(path);
  }
  return InvalidArgumentError("no reference tokenizer is called {}", name);
}

}  // namespace tokenbutler
