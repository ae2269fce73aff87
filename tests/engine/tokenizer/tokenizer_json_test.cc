#include "engine/tokenizer/tokenizer_json.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tokenbutler {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json ByteLevel() {
  return json::parse(R"json({
    "added_tokens": [
      {"id": 0, "content": "<s>", "special": true, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false},
      {"id": 6, "content": "</s>", "special": true, "normalized": false}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Digits", "individual_digits": true},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "</s>", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]},
                         "</s>": {"id": "</s>", "ids": [6], "tokens": ["</s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
              "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
              "vocab": {"<s>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5},
              "merges": ["a b", ["ab", "c"]]}
  })json");
}

json SentencePiece() {
  return json::parse(R"json({
    "added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null,
    "post_processor": null,
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
              "vocab": {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3}, "merges": ["▁ a"]}
  })json");
}

TEST(TokenizerJsonTest, ByteLevel) {
  const auto spec = ParseTokenizerJson(ByteLevel().dump());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->kind, TokenizerSpec::Kind::kByteLevelBpe);
  EXPECT_THAT(spec->tokens, ElementsAre("<s>", "a", "b", "c", "ab", "abc", "</s>"));
  EXPECT_THAT(spec->merges, ElementsAre("a b", "ab c"));
  EXPECT_THAT(spec->pre_tokenizer_steps,
              ElementsAre(PreTokenizerStep::kDigits, PreTokenizerStep::kGpt2));
  EXPECT_TRUE(spec->nfc);
  EXPECT_TRUE(spec->ignore_merges);
  EXPECT_THAT(*spec->prefix_ids, ElementsAre(0));
  EXPECT_THAT(*spec->suffix_ids, ElementsAre(6));
  EXPECT_FALSE(spec->unk_id.has_value());
}

TEST(TokenizerJsonTest, SentencePiece) {
  const auto spec = ParseTokenizerJson(SentencePiece().dump());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->kind, TokenizerSpec::Kind::kSentencePieceBpe);
  EXPECT_EQ(spec->space_prefix, TokenizerSpec::SpacePrefix::kEverySection);
  EXPECT_TRUE(spec->add_space_prefix);
  EXPECT_EQ(spec->strips_leading_space, true);
  EXPECT_EQ(spec->unk_id, 0);
  EXPECT_TRUE(spec->fuse_unk);
  EXPECT_TRUE(spec->added_tokens->at(0).special);
  EXPECT_FALSE(spec->added_tokens->at(0).normalized);
}

struct Row {
  std::string pointer;  // where in the document
  std::string value;    // the JSON put there; empty: the field is taken away
  std::string message;  // what the error has to say
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

void ExpectRefused(const json& good, const Row& row) {
  json document = good;
  const json::json_pointer pointer(row.pointer);
  if (row.value.empty()) {
    document[pointer.parent_pointer()].erase(pointer.back());
  } else {
    document[pointer] = json::parse(row.value);
  }
  const auto spec = ParseTokenizerJson(document.dump());
  ASSERT_FALSE(spec.ok()) << row.pointer << " = " << row.value;
  EXPECT_EQ(spec.status().code(), row.code) << spec.status();
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr(row.message));
}

TEST(TokenizerJsonTest, WrongFieldsAreNamed) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  const std::vector<Row> rows = {
      {"/model", "", "model is missing"},
      {"/model", "[]", "model is of type array"},
      {"/model/type", "\"Unigram\"", "model.type is 'Unigram'", unimplemented},
      {"/model/type", "3", "model.type is of type number"},
      {"/model/dropout", "0.1", "model.dropout", unimplemented},
      {"/model/continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix",
       unimplemented},
      {"/model/end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix", unimplemented},
      {"/model/fuse_unk", "1", "model.fuse_unk is of type number"},
      {"/model/byte_fallback", "\"yes\"", "model.byte_fallback"},
      {"/model/ignore_merges", "[]", "model.ignore_merges"},
      {"/model/unk_token", "\"zzz\"", "model.unk_token is 'zzz'"},
      {"/model/vocab", "", "model.vocab is missing"},
      {"/model/vocab", "[]", "model.vocab is of type array"},
      {"/model/vocab/a", "-1", "model.vocab['a'] is -1"},
      {"/model/vocab/a", "1.5", "model.vocab['a'] is of type number"},
      {"/model/vocab/a", "4000000000", "model.vocab['a'] is 4000000000"},
      {"/model/vocab/a", "18446744073709551615", "model.vocab['a']"},
      {"/model/vocab/a", "2", "id 2"},
      {"/model/merges", "", "model.merges is missing"},
      {"/model/merges", "{}", "model.merges is of type object"},
      {"/model/merges/0", "7", "model.merges[0]"},
      {"/model/merges/1", "[\"a\"]", "model.merges[1] has 1"},
      {"/model/merges/1", "[\"a\", 2]", "model.merges[1][1]"},
      {"/added_tokens", "{}", "added_tokens is of type object"},
      {"/added_tokens/1", "3", "added_tokens[1]"},
      {"/added_tokens/1/id", "", "added_tokens[1].id is missing"},
      {"/added_tokens/1/id", "1", "added_tokens[1] gives id 1"},
      {"/added_tokens/1/id", "70000000", "added_tokens[1].id is 70000000"},
      {"/added_tokens/1/content", "", "added_tokens[1].content is missing"},
      {"/added_tokens/1/special", "\"true\"", "added_tokens[1].special"},
      {"/added_tokens/1/lstrip", "0", "added_tokens[1].lstrip"},
      {"/normalizer", "{\"type\": \"NFKC\"}", "normalizer.type is 'NFKC'", unimplemented},
      {"/normalizer", "{}", "normalizer.type is missing"},
      {"/normalizer", "7", "normalizer is of type number"},
      {"/normalizer", R"({"type": "Sequence"})", "normalizer.normalizers is missing"},
      {"/normalizer", R"({"type": "Prepend", "prepend": "▁"})", "normalizer", unimplemented},
      {"/pre_tokenizer", "null", "pre_tokenizer", unimplemented},
      {"/pre_tokenizer", R"({"type": "Whitespace"})", "pre_tokenizer.type is 'Whitespace'",
       unimplemented},
      {"/pre_tokenizer/pretokenizers/0/individual_digits", "false", "individual_digits",
       unimplemented},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "add_prefix_space",
       unimplemented},
      {"/pre_tokenizer/pretokenizers/2", R"({"type": "ByteLevel", "add_prefix_space": false})",
       "pre_tokenizer.pretokenizers[2]", unimplemented},
      {"/pre_tokenizer/pretokenizers/0",
       R"({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "x+"}})",
       "pre_tokenizer.pretokenizers[0].pattern: pre-tokenizer pattern is not known: x+",
       unimplemented},
      {"/pre_tokenizer/pretokenizers/0",
       R"({"type": "Split", "behavior": "Isolated", "pattern": {"String": "x"}})",
       "pattern.Regex is missing"},
      {"/pre_tokenizer/pretokenizers/0",
       R"({"type": "Split", "behavior": "Removed", "pattern": {"Regex": "x"}})",
       "behavior is 'Removed'", unimplemented},
      {"/decoder", "null", "decoder", unimplemented},
      {"/decoder/type", "\"WordPiece\"", "decoder", unimplemented},
      {"/post_processor/type", "\"BertProcessing\"", "post_processor.type is 'BertProcessing'",
       unimplemented},
      {"/post_processor/single", "", "post_processor.single is missing"},
      {"/post_processor/single", "[]", "post_processor.single has no place"},
      {"/post_processor/single/0", "{}", "post_processor.single[0].SpecialToken is missing"},
      {"/post_processor/single/2", R"({"Sequence": {}})", "post_processor.single[2]",
       unimplemented},
      {"/post_processor/single/0/SpecialToken/id", "\"<x>\"",
       "post_processor.special_tokens.<x> is missing"},
      {"/post_processor/special_tokens/<s>/ids", "[7]",
       "post_processor.special_tokens.<s>.ids[0] is 7"},
  };
  for (const Row& row : rows) ExpectRefused(ByteLevel(), row);
}

TEST(TokenizerJsonTest, WrongSentencePieceFieldsAreNamed) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  const std::string metaspace =
      R"({"type": "Metaspace", "replacement": "▁", "split": false, "prepend_scheme": )";
  const std::vector<Row> rows = {
      {"/normalizer/normalizers/0/prepend", "\"_\"", "normalizers[0].prepend is '_'",
       unimplemented},
      {"/normalizer/normalizers/1/content", "\"_\"", "normalizers[1].content is '_'",
       unimplemented},
      {"/normalizer/normalizers/1/pattern", "{}", "normalizers[1].pattern.String is missing"},
      {"/normalizer", "null", "normalizer does not replace spaces", unimplemented},
      {"/pre_tokenizer", metaspace + "\"always\"}", "normalizer changes spaces", unimplemented},
      {"/decoder/decoders/3/start", "2", "decoder.decoders[3].start is 2", unimplemented},
      {"/decoder/decoders/3/stop", "", "decoder.decoders[3].stop is missing"},
      {"/decoder/decoders/0/content", "\"\"", "decoder.decoders[0].content is ''", unimplemented},
      {"/decoder/decoders/1/type", "\"Fuse\"", "decoder is not a Sequence", unimplemented},
  };
  for (const Row& row : rows) ExpectRefused(SentencePiece(), row);
  json document = SentencePiece();
  document["normalizer"] = nullptr;
  document["pre_tokenizer"] = json::parse(metaspace + "\"first\"}");
  EXPECT_TRUE(ParseTokenizerJson(document.dump()).ok());
  ExpectRefused(document,
                {"/pre_tokenizer/prepend_scheme", "\"last\"", "prepend_scheme is 'last'"});
  ExpectRefused(document, {"/pre_tokenizer/split", "true", "split is true", unimplemented});
  ExpectRefused(document,
                {"/pre_tokenizer/replacement", "\"_\"", "replacement is '_'", unimplemented});
}

TEST(TokenizerJsonTest, WhatIsNotJsonIsRefused) {
  for (const std::string text : {"", "{", "[]", "nul", "{\"model\": \"\xFF\"}", "\"x\""}) {
    const auto spec = ParseTokenizerJson(text);
    EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(TokenizerJsonTest, DeepNestingIsRefused) {
  std::string normalizer = R"({"type": "NFC"})";
  for (int i = 0; i < 5000; ++i) {
    normalizer = R"({"type": "Sequence", "normalizers": [)" + normalizer + "]}";
  }
  std::string document = ByteLevel().dump();
  const std::string nfc = R"({"type":"NFC"})";
  document.replace(document.find(nfc), nfc.size(), normalizer);
  const auto spec = ParseTokenizerJson(document);
  ASSERT_FALSE(spec.ok());
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr("nested deeper"));
}

TokenizerSpec ParsedSpec() { return *ParseTokenizerJson(ByteLevel().dump()); }

TEST(TokenizerConfigTest, RolesAndTemplate) {
  const auto result = ApplyTokenizerConfig(ParsedSpec(), R"({"bos_token": "<s>",
    "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null, "chat_template": "{{ x }}"})");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->spec.bos_id, 0);
  EXPECT_EQ(result->spec.eos_id, 6);
  EXPECT_EQ(result->bos_token, "<s>");
  EXPECT_EQ(result->eos_token, "</s>");
  EXPECT_EQ(result->chat_template, "{{ x }}");
  EXPECT_THAT(*result->spec.suffix_ids, ElementsAre(6));  // as tokenizer.json has it
}

TEST(TokenizerConfigTest, LlamaClassesDecideOnBosAndEos) {
  const auto with = [](const std::string& fields) {
    const auto result = ApplyTokenizerConfig(
        ParsedSpec(),
        R"({"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", )" + fields + "}");
    EXPECT_TRUE(result.ok()) << result.status();
    return std::pair(*result->spec.prefix_ids, *result->spec.suffix_ids);
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(with(R"("eos_token": "</s>")"), std::pair(Ids{0}, Ids{}));
  EXPECT_EQ(with(R"("eos_token": "</s>", "add_bos_token": false, "add_eos_token": true)"),
            std::pair(Ids{}, Ids{6}));
}

TEST(TokenizerConfigTest, NamedTemplates) {
  const auto result = ApplyTokenizerConfig(ParsedSpec(), R"({"chat_template": [
    {"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->chat_template, "D");
}

TEST(TokenizerConfigTest, WrongFieldsAreNamed) {
  const std::pair<std::string, std::string> rows[] = {
      {"3", "is of type number"},
      {R"({"bos_token": 3})", "bos_token is of type number"},
      {R"({"eos_token": {}})", "eos_token.content is missing"},
      {R"({"eos_token": "zzz"})", "eos_token is 'zzz'"},
      {R"({"chat_template": 3})", "chat_template is of type number"},
      {R"({"chat_template": [{"name": "default"}]})", "chat_template[0].template is missing"},
      {R"({"tokenizer_class": "LlamaTokenizer"})", "bos_token is missing"},
      {R"({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "add_bos_token": 1})",
       "add_bos_token"},
  };
  for (const auto& [config, message] : rows) {
    const auto result = ApplyTokenizerConfig(ParsedSpec(), config);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << config;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(message)) << config;
  }
}

TEST(ReadHfTokenizerTest, ReadsTheFilesOfAFolder) {
  const std::string folder = testing::TempDir() + "/tokenizer_json_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokenizer.json") << ByteLevel().dump();
  std::ofstream(folder + "/tokenizer_config.json")
      << R"({"bos_token": "<s>", "chat_template": "old"})";
  std::ofstream(folder + "/chat_template.jinja") << "new";
  const auto result =
      ReadHfTokenizer(folder + "/tokenizer.json", folder + "/tokenizer_config.json");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->spec.bos_id, 0);
  EXPECT_EQ(result->chat_template, "new");
  EXPECT_TRUE(ReadHfTokenizer(folder + "/tokenizer.json", "").ok());
  const auto missing = ReadHfTokenizer(folder + "/none.json", "");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("none.json"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tokenbutler
