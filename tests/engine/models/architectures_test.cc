#include "engine/models/architectures.h"

#include <string>
#include <vector>

#include "engine/models/json_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using testing::Each;
using testing::HasSubstr;

absl::StatusOr<ModelConfig> Read(const std::string& json) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Parse(json, "config.json"));
  ASSIGN_OR_RETURN(const Architecture* architecture, FindHfArchitecture(fields));
  return ReadHfConfig(*architecture, fields);
}

// A small valid config of `type`, with `extra` fields (", \"k\": v") that win over the usual ones.
std::string Config(const std::string& type, const std::string& extra = "") {
  return R"({"model_type": ")" + type +
         R"(", "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 128,
    "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5)" +
         extra + "}";
}

ModelConfig Must(const std::string& json) {
  absl::StatusOr<ModelConfig> config = Read(json);
  EXPECT_TRUE(config.ok()) << config.status() << "\n" << json;
  return config.ok() ? *std::move(config) : ModelConfig{};
}

void ExpectError(const std::string& json, absl::StatusCode code, const std::string& message) {
  const absl::Status status = Read(json).status();
  EXPECT_EQ(status.code(), code) << status << "\n" << json;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << json;
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

// The config.json files of released models, without the fields that nobody reads.
TEST(ReleasedModelsTest, Llama31) {
  const ModelConfig c = Must(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": false,
    "vocab_size": 128256})");
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.group_size(), 4);
  EXPECT_EQ(c.max_position, 131072);
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(c.rope.factor, 8.0f);
  EXPECT_EQ(c.rope.original_max_position, 8192);
  EXPECT_EQ(c.rope.theta, 500000.0f);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_FALSE(c.qkv_bias);
  EXPECT_THAT(c.sliding_window, Each(0));
}

TEST(ReleasedModelsTest, Llama1WithoutNewerFields) {
  const ModelConfig c = Must(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "num_hidden_layers": 32, "rms_norm_eps": 1e-06, "vocab_size": 32000})");
  EXPECT_EQ(c.num_kv_heads, 32);
  EXPECT_EQ(c.max_position, 2048);
  EXPECT_EQ(c.rope.theta, 10000.0f);
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kNone);
}

TEST(ReleasedModelsTest, Qwen25WithAWindowThatIsNotUsed) {
  const ModelConfig c = Must(R"({"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu",
    "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
    "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
    "use_sliding_window": false, "vocab_size": 151936})");
  EXPECT_EQ(c.architecture, "qwen2");
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_FALSE(c.o_bias);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_THAT(c.sliding_window, Each(0));
}

TEST(ReleasedModelsTest, Qwen25Yarn) {
  const ModelConfig c = Must(Config("qwen2", R"(, "max_position_embeddings": 32768,
    "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"})"));
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kYarn);
  EXPECT_EQ(c.rope.original_max_position, 32768);
  EXPECT_EQ(c.max_position, 131072);  // the file declares the context before the extension
}

TEST(ReleasedModelsTest, Mistral) {
  EXPECT_THAT(Must(Config("mistral", R"(, "sliding_window": 4096)")).sliding_window, Each(4096));
  EXPECT_THAT(Must(Config("mistral", R"(, "sliding_window": null)")).sliding_window, Each(0));
  EXPECT_THAT(Must(Config("mistral")).sliding_window, Each(4096));  // transformers' default
  const ModelConfig nemo = Must(Config("mistral", R"(, "head_dim": 128, "sliding_window": null)"));
  EXPECT_EQ(nemo.head_dim, 128);
  EXPECT_EQ(nemo.architecture, "mistral");
}

TEST(HfConfigTest, QwenWindowsByLayer) {
  const std::string window = R"(, "use_sliding_window": true, "sliding_window": 32)";
  EXPECT_EQ(Must(Config("qwen2", window + R"(, "max_window_layers": 3)")).sliding_window,
            (std::vector<int>{0, 0, 0, 32}));
  EXPECT_THAT(Must(Config("qwen2", window)).sliding_window, Each(0));  // 28 layers by default
  EXPECT_EQ(Must(Config("qwen2", window + R"(, "layer_types": ["full_attention",
              "sliding_attention", "full_attention", "sliding_attention"])"))
                .sliding_window,
            (std::vector<int>{0, 32, 0, 32}));
  ExpectError(Config("qwen2", window + R"(, "layer_types": ["full_attention"])"), kInvalid,
              "layer_types has 1 entries, must have one per layer: 4");
  ExpectError(Config("qwen2", window + R"(, "layer_types": ["a", "b", "c", "d"])"), kUnimplemented,
              "layer_types[0] is 'a'");
  ExpectError(Config("qwen2", R"(, "layer_types": ["sliding_attention", "full_attention",
              "full_attention", "full_attention"])"),
              kInvalid, "use_sliding_window is false");
}

TEST(HfConfigTest, LlamaBiases) {
  const ModelConfig c = Must(Config("llama", R"(, "attention_bias": true, "mlp_bias": true)"));
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_TRUE(c.o_bias);
  EXPECT_TRUE(c.mlp_bias);
}

TEST(HfConfigTest, RopeParametersOfTransformers5) {
  const ModelConfig c = Must(Config("llama", R"(, "rope_parameters": {"rope_type": "linear",
    "factor": 2.0, "rope_theta": 77777.0})"));
  EXPECT_EQ(c.rope.theta, 77777.0f);
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kLinear);
  EXPECT_EQ(c.rope.factor, 2.0f);
  ExpectError(Config("llama", R"(, "rope_parameters": {"full_attention": {}})"), kUnimplemented,
              "differ by layer type");
}

TEST(HfConfigTest, RopeTypesAreKnownOrRefused) {
  for (const char* type : {"dynamic", "longrope", "su", "mrope", "ntk", ""}) {
    ExpectError(
        Config("llama", fmt::format(R"(, "rope_scaling": {{"type": "{}", "factor": 2.0}})", type)),
        kUnimplemented, fmt::format("rope_scaling.type is '{}'", type));
  }
  EXPECT_EQ(Must(Config("llama", R"(, "rope_scaling": {"rope_type": "default"})")).rope.scaling,
            RopeConfig::Scaling::kNone);
  EXPECT_EQ(Must(Config("llama", R"(, "rope_scaling": null)")).rope.scaling,
            RopeConfig::Scaling::kNone);
}

TEST(HfConfigTest, RopeNumbersHaveBounds) {
  const auto scaling = [](const std::string& fields) {
    return Config("llama", R"(, "rope_scaling": {)" + fields + "}");
  };
  ExpectError(scaling(R"("rope_type": "linear")"), kNotFound, "rope_scaling.factor is missing");
  ExpectError(scaling(R"("rope_type": "linear", "factor": 0.5)"), kInvalid, "rope_scaling.factor");
  ExpectError(scaling(R"("rope_type": "linear", "factor": "2")"), kInvalid, "wanted a number");
  ExpectError(scaling(R"("rope_type": "yarn", "factor": 1e30)"), kInvalid, "rope_scaling.factor");
  ExpectError(scaling(R"("rope_type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2)"),
              kInvalid, "beta_fast is 1, must be at least beta_slow 2");
  ExpectError(scaling(R"("rope_type": "llama3", "factor": 2)"), kNotFound, "low_freq_factor");
  ExpectError(scaling(R"("rope_type": "llama3", "factor": 2, "low_freq_factor": 4,
              "high_freq_factor": 4)"),
              kInvalid, "high_freq_factor is 4, must be above low_freq_factor 4");
  ExpectError(Config("llama", R"(, "rope_theta": 0)"), kInvalid, "rope_theta is 0");
  ExpectError(Config("llama", R"(, "rope_theta": 1)"), kInvalid, "rope_theta is 1");
}

TEST(HfConfigTest, RefusesWhatItWouldGetWrong) {
  ExpectError(Config("llama", R"(, "hidden_act": "gelu")"), kUnimplemented, "hidden_act is 'gelu'");
  ExpectError(Config("llama", R"(, "partial_rotary_factor": 0.5)"), kUnimplemented,
              "partial_rotary_factor is 0.5");
  ExpectError(Config("llama", R"(, "quantization_config": {"quant_method": "awq"})"),
              kUnimplemented, "quant_method is 'awq'");
  ExpectError(Config("phi3"), kUnimplemented, "'phi3' is not implemented (llama, qwen2, mistral");
  ExpectError(Config("llama", R"(, "architectures": ["LlamaForSequenceClassification"])"),
              kUnimplemented, "LlamaForSequenceClassification");
  ExpectError(R"({"architectures": ["FooForCausalLM"]})", kUnimplemented, "'FooForCausalLM'");
  ExpectError("{}", kInvalid, "neither model_type nor architectures");
}

// Every number of config.json with every kind of bad value: the error names the field.
TEST(HfConfigDamageTest, EveryNumberIsChecked) {
  const std::vector<std::string> fields = {
      "num_hidden_layers",   "hidden_size",         "intermediate_size", "vocab_size",
      "num_attention_heads", "num_key_value_heads", "head_dim",          "max_position_embeddings",
      "rms_norm_eps",        "rope_theta"};
  const std::vector<std::string> values = {"0",
                                           "-1",
                                           "-9223372036854775808",
                                           "2147483648",
                                           "4294967296",
                                           "9223372036854775807",
                                           "18446744073709551615",
                                           "1e300",
                                           "\"4\"",
                                           "true",
                                           "[4]",
                                           "{}"};
  for (const std::string& field : fields) {
    for (const std::string& value : values) {
      const absl::Status status =
          Read(Config("llama", fmt::format(R"(, "{}": {})", field, value))).status();
      if (field == "rope_theta" && (value == "2147483648" || value == "4294967296")) continue;
      EXPECT_EQ(status.code(), kInvalid) << field << " " << value << " " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(field)) << value;
    }
  }
}

TEST(HfConfigDamageTest, SizesMustAgree) {
  ExpectError(Config("llama", R"(, "num_key_value_heads": 3)"), kInvalid,
              "num_heads is 4, must be a multiple of num_kv_heads 3");
  ExpectError(Config("llama", R"(, "num_key_value_heads": 8)"), kInvalid, "num_kv_heads is 8");
  ExpectError(Config("llama", R"(, "hidden_size": 65)"), kInvalid, "the hidden size is 65");
  ExpectError(Config("llama", R"(, "head_dim": 15)"), kInvalid, "head_dim is 15, must be even");
  ExpectError(Config("qwen2", R"(, "num_key_value_heads": null)"), kNotFound,
              "num_key_value_heads is missing");
}

TEST(JsonFieldsTest, ReadsDottedFieldsAndNamesTheSource) {
  const absl::StatusOr<JsonFields> fields =
      JsonFields::Parse(R"({"a": {"b": 3, "c": null}, "d": [1, 2], "e": 5, "f": [1.5]})", "x.json");
  ASSERT_TRUE(fields.ok());
  EXPECT_EQ(**fields->FindInt("a.b"), 3);
  EXPECT_TRUE(fields->Has("a.c"));
  EXPECT_FALSE(fields->FindInt("a.c")->has_value());
  EXPECT_FALSE(fields->Has("a.b.c"));
  EXPECT_FALSE(fields->Has("e.b"));
  EXPECT_EQ(*fields->FindInts("d"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(*fields->FindInts("e"), (std::vector<int64_t>{5}));
  EXPECT_EQ(std::string(fields->FindInts("f").status().message()),
            "x.json: f is a number, wanted only integers in the array");
  EXPECT_FALSE(JsonFields::Parse("{\"a\": 1e999}", "x.json").ok());
  EXPECT_FALSE(JsonFields::Parse(std::string(1 << 20, '['), "x.json").ok());
}

}  // namespace
}  // namespace tokenbutler
