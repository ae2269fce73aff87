#include "tests/testing/tiny_model.h"

#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "tests/testing/safetensors_writer.h"

namespace tokenbutler {
namespace {

constexpr int kHidden = 32;
constexpr int kInner = 64;
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 16;
constexpr int kImEnd = 701;

void Write(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file;
  file.exceptions(std::ios::failbit | std::ios::badbit);
  file.open(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
}

std::string ConfigJson(int num_layers) {
  return fmt::format(
      R"({{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": {},
"hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": {},
"num_key_value_heads": {}, "head_dim": {}, "max_position_embeddings": {}, "rms_norm_eps": 1e-6,
"rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": {}}})",
      kTinyModelVocab, kHidden, kInner, num_layers, kHeads, kKvHeads, kHeadDim, kTinyModelLen,
      kImEnd);
}

constexpr char kTokenizerConfigJson[] =
    R"({"eos_token": "<|im_end|>", "chat_template": )"
    R"("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %})"
    R"({% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"})";

using Shapes = std::vector<std::pair<std::string, std::vector<int>>>;

Shapes TensorShapes(int num_layers) {
  Shapes shapes = {{"model.embed_tokens.weight", {kTinyModelVocab, kHidden}},
                   {"model.norm.weight", {kHidden}}};
  for (int layer = 0; layer < num_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    for (auto& [name, shape] : Shapes{{"input_layernorm.weight", {kHidden}},
                                      {"post_attention_layernorm.weight", {kHidden}},
                                      {"self_attn.q_proj.weight", {kHeads * kHeadDim, kHidden}},
                                      {"self_attn.q_proj.bias", {kHeads * kHeadDim}},
                                      {"self_attn.k_proj.weight", {kKvHeads * kHeadDim, kHidden}},
                                      {"self_attn.k_proj.bias", {kKvHeads * kHeadDim}},
                                      {"self_attn.v_proj.weight", {kKvHeads * kHeadDim, kHidden}},
                                      {"self_attn.v_proj.bias", {kKvHeads * kHeadDim}},
                                      {"self_attn.o_proj.weight", {kHidden, kHeads * kHeadDim}},
                                      {"mlp.gate_proj.weight", {kInner, kHidden}},
                                      {"mlp.up_proj.weight", {kInner, kHidden}},
                                      {"mlp.down_proj.weight", {kHidden, kInner}}}) {
      shapes.emplace_back(prefix + name, shape);
    }
  }
  return shapes;
}

std::string WeightsFile(int num_layers) {
  std::mt19937 random(1);
  std::normal_distribution<float> draw(0.0f, 0.3f);
  std::string header = "{";
  std::string data;
  for (const auto& [name, shape] : TensorShapes(num_layers)) {
    const bool norm = name.find("norm") != std::string::npos;
    size_t count = 1;
    for (const int size : shape) count *= static_cast<size_t>(size);
    const size_t begin = data.size();
    for (size_t i = 0; i < count; ++i) {
      const float value = norm ? 1.0f : draw(random);
      data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    header +=
        fmt::format(R"({}"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})",
                    header.size() == 1 ? "" : ",", name, fmt::join(shape, ","), begin, data.size());
  }
  return SafetensorsBytes(header + "}", data);
}

}  // namespace

void WriteTinyModel(const std::filesystem::path& folder, int num_layers) {
  std::filesystem::create_directories(folder);
  Write(folder / "config.json", ConfigJson(num_layers));
  Write(folder / "tokenizer_config.json", kTokenizerConfigJson);
  Write(folder / "model.safetensors", WeightsFile(num_layers));
  std::filesystem::copy_file(
      std::filesystem::path(TOKENBUTLER_TEST_DATA) / "tokenizers/json-qwen2.json",
      folder / "tokenizer.json", std::filesystem::copy_options::overwrite_existing);
}

}  // namespace tokenbutler
