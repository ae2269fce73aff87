#include "engine/weights/loader.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/temporary_folder.h"

namespace tokenbutler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

// A one-layer llama: hidden 8, 2 heads of 4, 1 KV head, inner 6, 5 tokens.
struct Tensor {
  std::string name;
  std::vector<uint64_t> shape;
};
std::vector<Tensor> TinyTensors() {
  return {{"token_embd.weight", {5, 8}},        {"output_norm.weight", {8}},
          {"blk.0.attn_norm.weight", {8}},      {"blk.0.attn_q.weight", {8, 8}},
          {"blk.0.attn_k.weight", {4, 8}},      {"blk.0.attn_v.weight", {4, 8}},
          {"blk.0.attn_output.weight", {8, 8}}, {"blk.0.ffn_norm.weight", {8}},
          {"blk.0.ffn_gate.weight", {6, 8}},    {"blk.0.ffn_up.weight", {6, 8}},
          {"blk.0.ffn_down.weight", {8, 6}}};
}

void AddTensors(const std::vector<Tensor>& tensors, GgufWriter* writer) {
  for (const Tensor& tensor : tensors) {
    size_t elements = 1;
    for (const uint64_t size : tensor.shape) elements *= size;
    std::vector<float> values(elements);
    // Row r of a matrix holds r everywhere, so that a test sees where a row went.
    const size_t columns = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
    for (size_t i = 0; i < elements; ++i) {
      const size_t row = i / columns;
      values[i] = static_cast<float>(row);
    }
    writer->AddF32Tensor(tensor.name, tensor.shape, values);
  }
}

// The numbers that a model needs, without those named in `without`.
GgufWriter TinyMetadata(const std::string& without = "", const std::string& arch = "llama") {
  GgufWriter writer;
  writer.AddString("general.architecture", arch);
  const auto add = [&](const std::string& key, uint32_t value) {
    if (key != without) writer.AddUint32(arch + "." + key, value);
  };
  add("block_count", 1);
  add("context_length", 64);
  add("embedding_length", 8);
  add("feed_forward_length", 6);
  add("attention.head_count", 2);
  add("attention.head_count_kv", 1);
  if (without != "attention.layer_norm_rms_epsilon") {
    writer.AddFloat(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  }
  return writer;
}

class LoaderTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    return temporary_.Write(name, bytes);
  }
  absl::StatusOr<LoadedModel> LoadFile(GgufWriter writer) {
    LoadOptions options;
    options.compute_dtype = DType::kF32;
    options.num_threads = 1;
    return LoadModel(Write("model.gguf", writer.Finish()), options);
  }
  void ExpectError(GgufWriter writer, absl::StatusCode code, const std::string& message) {
    const absl::Status status = LoadFile(std::move(writer)).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_THAT(std::string(status.message()), HasSubstr("model.gguf"));
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(LoaderTest, PutsInterleavedRowsBackIntoHalves) {
  GgufWriter writer = TinyMetadata();
  AddTensors(TinyTensors(), &writer);
  const absl::StatusOr<LoadedModel> model = LoadFile(writer);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto rows = [](const TensorView& view) {
    std::vector<int> first;
    for (int64_t r = 0; r < view.shape[0]; ++r) {
      first.push_back(static_cast<int>(view.as<float>()[r * view.shape[1]]));
    }
    return first;
  };
  const LayerWeights& layer = model->weights.layers[0];
  EXPECT_THAT(rows(layer.q_proj), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(rows(layer.k_proj), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(rows(layer.v_proj), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(model->config.name, "model");  // the file says no other
  EXPECT_TRUE(model->config.tie_word_embeddings);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(model->tokenizer));
}

TEST_F(LoaderTest, NamesMissingAndWrongTensors) {
  for (size_t i = 1; i < TinyTensors().size(); ++i) {
    std::vector<Tensor> tensors = TinyTensors();
    const Tensor taken = tensors[i];
    tensors.erase(tensors.begin() + static_cast<ptrdiff_t>(i));
    GgufWriter missing = TinyMetadata();
    AddTensors(tensors, &missing);
    ExpectError(missing, kNotFound, "tensor " + taken.name + " is missing, wanted with shape [");
    tensors = TinyTensors();
    tensors[i].shape[0] += 1;
    GgufWriter wrong = TinyMetadata();
    AddTensors(tensors, &wrong);
    ExpectError(wrong, kInvalid, "tensor " + taken.name + " has shape [");
    tensors[i].shape = taken.shape;
    tensors[i].shape.push_back(1);
    GgufWriter deeper = TinyMetadata();
    AddTensors(tensors, &deeper);
    ExpectError(deeper, kInvalid, "tensor " + taken.name + " has shape [");
  }
}

TEST_F(LoaderTest, RefusesTensorsThatItWouldIgnore) {
  for (const char* name :
       {"blk.0.attn_q_norm.weight", "blk.1.attn_q.weight", "blk.0.attn_k.bias", "extra"}) {
    std::vector<Tensor> tensors = TinyTensors();
    tensors.push_back({name, {4}});
    GgufWriter writer = TinyMetadata();
    AddTensors(tensors, &writer);
    ExpectError(writer, kInvalid, std::string("tensor ") + name + " has no place");
  }
}

TEST_F(LoaderTest, RefusesQuantisedVectors) {
  GgufWriter writer = TinyMetadata("embedding_length");
  writer.AddUint32("llama.embedding_length", 32);
  writer.AddTensor("token_embd.weight", GgmlType::kQ8_0, {5, 32}, std::string(5 * 34, '\0'));
  writer.AddTensor("blk.0.attn_norm.weight", GgmlType::kQ8_0, {32}, std::string(34, '\0'));
  ExpectError(writer, kInvalid, "blk.0.attn_norm.weight is a vector of type Q8_0");
}

// Every number of the metadata with every kind of bad value: the error names the key.
TEST_F(LoaderTest, EveryMetadataNumberIsChecked) {
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length",
        "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.value_length", "rope.dimension_count", "vocab_size"}) {
    const auto check = [&](const std::function<void(GgufWriter*, const std::string&)>& add) {
      GgufWriter writer = TinyMetadata(key);
      add(&writer, std::string("llama.") + key);
      AddTensors(TinyTensors(), &writer);
      ExpectError(writer, kInvalid, key);
    };
    for (const int64_t value :
         {int64_t{0}, int64_t{-1}, int64_t{1} << 31, int64_t{1} << 40,
          std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
      SCOPED_TRACE(fmt::format("{} = {}", key, value));
      check([&](GgufWriter* w, const std::string& k) { w->AddNumber(k, GgufType::kInt64, value); });
    }
    check([](GgufWriter* w, const std::string& k) {
      w->AddNumber(k, GgufType::kUint64, ~uint64_t{0});
    });
    check([](GgufWriter* w, const std::string& k) { w->AddFloat(k, 4.0f); });
    check([](GgufWriter* w, const std::string& k) { w->AddString(k, "4"); });
    check([](GgufWriter* w, const std::string& k) {
      w->AddNumbers<uint32_t>(k, GgufType::kUint32, {4});
    });
  }
  for (const char* key : {"attention.layer_norm_rms_epsilon", "rope.freq_base"}) {
    for (const float value : {0.0f, -1.0f, 1e30f, INFINITY, NAN}) {
      SCOPED_TRACE(fmt::format("{} = {}", key, value));
      GgufWriter writer = TinyMetadata(key);
      writer.AddFloat(std::string("llama.") + key, value);
      AddTensors(TinyTensors(), &writer);
      ExpectError(writer, kInvalid, key);
    }
  }
}

TEST_F(LoaderTest, NamesMissingMetadata) {
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length",
        "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    GgufWriter writer = TinyMetadata(key);
    AddTensors(TinyTensors(), &writer);
    ExpectError(writer, kNotFound, std::string("llama.") + key + " is missing");
  }
}

TEST_F(LoaderTest, RefusesWhatItDoesNotKnow) {
  GgufWriter mamba = TinyMetadata("", "mamba");
  AddTensors(TinyTensors(), &mamba);
  ExpectError(mamba, kUnimplemented, "general.architecture is 'mamba'");

  GgufWriter longrope = TinyMetadata();
  longrope.AddString("llama.rope.scaling.type", "longrope");
  AddTensors(TinyTensors(), &longrope);
  ExpectError(longrope, kUnimplemented, "llama.rope.scaling.type is 'longrope'");

  GgufWriter experts = TinyMetadata();
  experts.AddUint32("llama.expert_count", 8);
  AddTensors(TinyTensors(), &experts);
  ExpectError(experts, kUnimplemented, "llama.expert_count is 8");

  GgufWriter partial = TinyMetadata();
  partial.AddUint32("llama.rope.dimension_count", 2);
  AddTensors(TinyTensors(), &partial);
  ExpectError(partial, kUnimplemented, "2 rotated channels");

  GgufWriter window = TinyMetadata("", "qwen2");
  window.AddUint32("qwen2.attention.sliding_window", 16);
  AddTensors(TinyTensors(), &window);
  ExpectError(window, kUnimplemented, "does not say for which layers");

  GgufWriter none;
  AddTensors(TinyTensors(), &none);
  ExpectError(none, kInvalid, "general.architecture is missing");
}

TEST_F(LoaderTest, ReadsRopeScalingAsLlamaCppDoes) {
  const auto rope_of = [&](const std::function<void(GgufWriter*)>& add) {
    GgufWriter writer = TinyMetadata();
    add(&writer);
    AddTensors(TinyTensors(), &writer);
    const absl::StatusOr<LoadedModel> model = LoadFile(writer);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? model->config.rope : RopeConfig{};
  };
  // A factor without a type is linear; early files had another key.
  EXPECT_EQ(rope_of([](GgufWriter* w) { w->AddFloat("llama.rope.scaling.factor", 2); }).scaling,
            RopeConfig::Scaling::kLinear);
  EXPECT_EQ(rope_of([](GgufWriter* w) { w->AddFloat("llama.rope.scale_linear", 2); }).factor, 2.0f);
  EXPECT_EQ(rope_of([](GgufWriter* w) { w->AddFloat("llama.rope.scaling.factor", 0); }).scaling,
            RopeConfig::Scaling::kNone);
  const RopeConfig yarn = rope_of([](GgufWriter* w) {
    w->AddString("llama.rope.scaling.type", "yarn");
    w->AddFloat("llama.rope.scaling.factor", 4);
    w->AddFloat("llama.rope.scaling.attn_factor", 0.5f);
    w->AddUint32("llama.rope.scaling.original_context_length", 16);
  });
  EXPECT_EQ(yarn.scaling, RopeConfig::Scaling::kYarn);
  EXPECT_EQ(yarn.original_max_position, 16);
  EXPECT_NEAR(*yarn.attention_factor, 0.5f * (0.1f * std::log(4.0f) + 1.0f), 1e-6f);
}

TEST_F(LoaderTest, ChecksRopeFactors) {
  for (const std::vector<float>& factors :
       {std::vector<float>{1, 1, 1}, std::vector<float>{0, 1}, std::vector<float>{NAN, 1}}) {
    GgufWriter writer = TinyMetadata();
    AddTensors(TinyTensors(), &writer);
    writer.AddF32Tensor("rope_freqs.weight", {factors.size()}, factors);
    ExpectError(writer, kInvalid, "frequency factor");
  }
}

void AddTokenizer(GgufWriter* writer, const std::string& model = "gpt2") {
  writer->AddString("tokenizer.ggml.model", model);
  writer->AddString("tokenizer.ggml.pre", "qwen2");
  writer->AddStrings("tokenizer.ggml.tokens", {"a", "b", "ab", "<|im_end|>", "<s>"});
  writer->AddNumbers<int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {1, 1, 1, 3, 3});
  writer->AddStrings("tokenizer.ggml.merges", {"a b"});
}

TEST_F(LoaderTest, ReadsTokenizerTemplateAndDefaults) {
  GgufWriter writer = TinyMetadata();
  AddTokenizer(&writer);
  writer.AddUint32("tokenizer.ggml.bos_token_id", 4);
  writer.AddUint32("tokenizer.ggml.eos_token_id", 2);
  writer.AddUint32("tokenizer.ggml.padding_token_id", 0xffffffffu);
  writer.AddBool("tokenizer.ggml.add_bos_token", true);
  writer.AddString("tokenizer.chat_template", "{{ x }}");
  writer.AddFloat("general.sampling.temp", 0.5f);
  writer.AddNumber("general.sampling.top_k", GgufType::kInt32, 20);
  AddTensors(TinyTensors(), &writer);
  const absl::StatusOr<LoadedModel> model = LoadFile(writer);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto& spec = std::get<TokenizerSpec>(model->tokenizer);
  EXPECT_EQ(spec.kind, TokenizerSpec::Kind::kByteLevelBpe);
  EXPECT_EQ(spec.pre_tokenizer, "qwen2");
  EXPECT_EQ(spec.tokens.size(), 5u);
  EXPECT_EQ(spec.bos_id, 4);
  EXPECT_FALSE(spec.pad_id.has_value());
  EXPECT_EQ(spec.add_bos, true);
  EXPECT_THAT(model->generation.eos_ids, ElementsAre(2, 3));  // <|im_end|> ends turns by its name
  EXPECT_EQ(model->bos_token, "<s>");
  EXPECT_EQ(model->eos_token, "ab");
  EXPECT_EQ(model->chat_template, "{{ x }}");
  EXPECT_EQ(model->generation.temperature, 0.5f);
  EXPECT_EQ(model->generation.top_k, 20);
  EXPECT_FALSE(model->generation.top_p.has_value());
}

TEST_F(LoaderTest, ChecksTheTokenizer) {
  const auto with = [](const std::function<void(GgufWriter*)>& add) {
    GgufWriter writer = TinyMetadata();
    add(&writer);
    AddTensors(TinyTensors(), &writer);
    return writer;
  };
  ExpectError(with([](GgufWriter* w) { AddTokenizer(w, "bert"); }), kUnimplemented,
              "tokenizer.ggml.model is 'bert'");
  ExpectError(with([](GgufWriter* w) { w->AddString("tokenizer.ggml.model", "gpt2"); }), kNotFound,
              "tokenizer.ggml.tokens is missing");
  ExpectError(with([](GgufWriter* w) {
                w->AddString("tokenizer.ggml.model", "gpt2");
                w->AddStrings("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e", "f"});
              }),
              kInvalid, "tokenizer.ggml.tokens has 6 entries, must have from 1 to 5");
  ExpectError(with([](GgufWriter* w) {
                w->AddString("tokenizer.ggml.model", "gpt2");
                w->AddStrings("tokenizer.ggml.tokens", {"a", "b"});
                w->AddNumbers<int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {1});
              }),
              kInvalid, "tokenizer.ggml.token_type has 1 entries, must have one per token: 2");
  ExpectError(with([](GgufWriter* w) {
                w->AddString("tokenizer.ggml.model", "llama");
                w->AddStrings("tokenizer.ggml.tokens", {"a", "b"});
                w->AddNumbers<int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {1, 7});
              }),
              kInvalid, "tokenizer.ggml.token_type[1] is 7, must be from 1 to 6");
  ExpectError(with([](GgufWriter* w) {
                AddTokenizer(w);
                w->AddUint32("tokenizer.ggml.bos_token_id", 5);
              }),
              kInvalid, "tokenizer.ggml.bos_token_id is 5, must be from 0 to 4");
  ExpectError(with([](GgufWriter* w) {
                AddTokenizer(w);
                w->AddString("tokenizer.chat_template", "\xff");
              }),
              kInvalid, "'tokenizer.chat_template' is not UTF-8");
}

TEST_F(LoaderTest, LoadsASplitSet) {
  const auto part = [&](uint16_t number, uint16_t count, int32_t total) {
    GgufWriter writer = number == 0 ? TinyMetadata() : GgufWriter();
    writer.AddNumber("split.no", GgufType::kUint16, number);
    writer.AddNumber("split.count", GgufType::kUint16, count);
    writer.AddNumber("split.tensors.count", GgufType::kInt32, total);
    const std::vector<Tensor> all = TinyTensors();
    AddTensors(number == 0 ? std::vector<Tensor>(all.begin(), all.begin() + 4)
                           : std::vector<Tensor>(all.begin() + 4, all.end()),
               &writer);
    return writer.Finish();
  };
  const std::string first = Write("m-00001-of-00002.gguf", part(0, 2, 11));
  EXPECT_EQ(LoadModel(first, {}).status().code(), kNotFound);
  const std::string second = Write("m-00002-of-00002.gguf", part(1, 2, 11));
  EXPECT_TRUE(LoadModel(first, {}).ok()) << LoadModel(first, {}).status();
  EXPECT_TRUE(LoadModel(second, {}).ok());
  Write("m-00002-of-00002.gguf", part(1, 3, 11));
  EXPECT_THAT(std::string(LoadModel(first, {}).status().message()), HasSubstr("split.count 3"));
  Write("m-00002-of-00002.gguf", part(0, 2, 11));
  EXPECT_THAT(std::string(LoadModel(first, {}).status().message()), HasSubstr("split.no is 0"));
  Write("m-00001-of-00002.gguf", part(0, 2, 12));
  Write("m-00002-of-00002.gguf", part(1, 2, 12));
  EXPECT_THAT(std::string(LoadModel(first, {}).status().message()),
              HasSubstr("split.tensors.count is 12"));
  const std::string renamed = Write("other.gguf", part(0, 2, 11));
  EXPECT_THAT(std::string(LoadModel(renamed, {}).status().message()),
              HasSubstr("must end in -00001-of-00002.gguf"));
}

TEST_F(LoaderTest, AppliesOverrides) {
  GgufWriter writer = TinyMetadata();
  AddTensors(TinyTensors(), &writer);
  const std::string path = Write("model.gguf", writer.Finish());
  LoadOptions options;
  options.overrides = {.max_model_len = 100,
                       .rope_scaling = R"({"rope_type": "yarn", "factor": 2.0})"};
  const absl::StatusOr<LoadedModel> model = LoadModel(path, options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->config.max_position, 100);
  EXPECT_EQ(model->config.rope.original_max_position, 64);
  options.overrides.rope_scaling.clear();
  EXPECT_EQ(LoadModel(path, options).status().code(), kInvalid);
  options.compute_dtype = DType::kI8;
  EXPECT_THAT(std::string(LoadModel(path, options).status().message()), HasSubstr("int8"));
}

TEST_F(LoaderTest, NamesPathsThatAreNoModels) {
  EXPECT_EQ(LoadModel((folder_ / "none.gguf").string(), {}).status().code(), kNotFound);
  EXPECT_THAT(std::string(LoadModel(folder_.string(), {}).status().message()),
              HasSubstr("config.json"));
  EXPECT_THAT(std::string(LoadModel(Write("x.gguf", "not a model"), {}).status().message()),
              HasSubstr("magic is 'not ', must be 'GGUF'"));
  EXPECT_EQ(LoadModel("/dev/null", {}).status().code(), kInvalid);
}

}  // namespace
}  // namespace tokenbutler
