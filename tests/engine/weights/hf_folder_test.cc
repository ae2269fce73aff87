// The files of a Hugging Face folder around its weights.

#include <filesystem>
#include <string>
#include <variant>

#include "engine/weights/loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/temporary_folder.h"

namespace tokenbutler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A folder with the configuration and weights of a tiny model, to put other files beside them.
class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path tiny(TOKENBUTLER_TEST_DATA "/tiny_models/llama-none");
    std::filesystem::copy_file(tiny / "config.json", folder_ / "config.json");
    std::filesystem::copy_file(tiny / "model.safetensors", folder_ / "model.safetensors");
  }
  void Write(const std::string& name, const std::string& bytes) { temporary_.Write(name, bytes); }
  LoadedModel Load() {
    absl::StatusOr<LoadedModel> model = LoadModel(folder_.string(), {});
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : LoadedModel{};
  }
  std::string Error() { return std::string(LoadModel(folder_.string(), {}).status().message()); }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(FolderTest, ReadsTokenizerFilesTemplateAndDefaults) {
  Write("tokenizer.json", "{}");
  Write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>",
    "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  Write("generation_config.json", R"({"eos_token_id": [7, 8, 7], "temperature": 0.6, "top_p": 0.9,
    "top_k": 0, "repetition_penalty": 1.1})");
  const LoadedModel model = Load();
  const auto& files = std::get<HfTokenizerFiles>(model.tokenizer);
  EXPECT_EQ(files.tokenizer_json, (folder_ / "tokenizer.json").string());
  EXPECT_EQ(files.tokenizer_config_json, (folder_ / "tokenizer_config.json").string());
  EXPECT_EQ(model.chat_template, "D");
  EXPECT_EQ(model.bos_token, "<s>");
  EXPECT_EQ(model.eos_token, "</s>");
  EXPECT_THAT(model.generation.eos_ids, ElementsAre(7, 8));
  EXPECT_EQ(model.generation.bos_id, 1);  // from config.json
  EXPECT_EQ(model.generation.temperature, 0.6f);
  EXPECT_EQ(model.generation.top_k, 0);
  Write("chat_template.jinja", "J");
  EXPECT_EQ(Load().chat_template, "J");
}

TEST_F(FolderTest, WithoutAGenerationConfigTheConfigsIdsCount) {
  const LoadedModel model = Load();
  EXPECT_THAT(model.generation.eos_ids, ElementsAre(2));
  EXPECT_FALSE(model.chat_template.has_value());
  EXPECT_TRUE(std::holds_alternative<std::monostate>(model.tokenizer));
}

TEST_F(FolderTest, ChecksTheFilesAround) {
  Write("generation_config.json", R"({"eos_token_id": [7, 96]})");
  EXPECT_THAT(Error(), HasSubstr("eos_token_id is 96, must be from 0 to 95"));
  Write("generation_config.json", R"({"temperature": "hot"})");
  EXPECT_THAT(Error(), HasSubstr("temperature is a string, wanted a number"));
  Write("generation_config.json", R"({"top_p": 2})");
  EXPECT_THAT(Error(), HasSubstr("top_p is 2, must be from"));
  Write("generation_config.json", "{}");
  Write("tokenizer_config.json", "{");
  EXPECT_THAT(Error(), HasSubstr("tokenizer_config.json is not JSON"));
  Write("tokenizer_config.json", R"({"chat_template": 1})");
  EXPECT_THAT(Error(), HasSubstr("chat_template is a number, wanted a string"));
  Write("tokenizer_config.json", "{}");
  Write("chat_template.jinja", "\xc3");
  EXPECT_THAT(Error(), HasSubstr("chat_template.jinja is not UTF-8"));
}

TEST_F(FolderTest, RefusesWeightsOfOtherTypes) {
  Write("model.safetensors",
        SafetensorsBytes(R"({"model.embed_tokens.weight":)"
                         R"({"dtype":"I8","shape":[96,32],"data_offsets":[0,3072]}})",
                         std::string(3072, '\0')));
  EXPECT_THAT(Error(), HasSubstr("model.embed_tokens.weight has dtype I8"));
}

}  // namespace
}  // namespace tokenbutler
