// Every architecture, RoPE kind and file format against transformers, in float32, through prefill
// and through decode. The models and goldens are made by tools/golden/make_tiny_models.py.

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/loaded_runner.h"

namespace tokenbutler {
namespace {

const std::string kFolder = std::string(TOKENBUTLER_TEST_DATA) + "/tiny_models/";

// Float32 sums in another order: the logits are of the size of 1 to 10.
constexpr double kTolerance = 1e-4;

struct Case {
  std::string model;
  std::string golden;
};

std::vector<Case> AllCases() {
  std::ifstream file(kFolder + "cases.json");
  std::vector<Case> cases;
  for (const nlohmann::json& c : nlohmann::json::parse(file)) {
    cases.push_back({c["model"], c["golden"]});
  }
  return cases;
}

struct Golden {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  std::vector<float> logits;  // [prompt tokens, vocab_size]
};

Golden ReadGolden(const std::string& name) {
  std::ifstream text(kFolder + "goldens/" + name + ".json");
  const nlohmann::json json = nlohmann::json::parse(text);
  Golden golden{.prompt = json["prompt"], .greedy = json["greedy"], .logits = {}};
  golden.logits.resize(golden.prompt.size() * json["vocab_size"].get<size_t>());
  std::ifstream file(kFolder + "goldens/" + name + ".logits.f32", std::ios::binary);
  file.read(reinterpret_cast<char*>(golden.logits.data()), golden.logits.size() * sizeof(float));
  EXPECT_TRUE(file.good()) << name;
  return golden;
}

class TinyModelsTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    golden_ = ReadGolden(GetParam().golden);
    auto loaded = LoadedRunner::Load(kFolder + GetParam().model, {});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    model_ = *std::move(loaded);
    ASSERT_EQ(golden_.logits.size(), golden_.prompt.size() * model_->vocab_size());
  }

  BlockTable NewSequence() {
    return model_->NewSequence(static_cast<int>(golden_.prompt.size() + golden_.greedy.size()));
  }

  Golden golden_;
  std::unique_ptr<LoadedRunner> model_;
};

TEST_P(TinyModelsTest, PrefillEqualsTransformersInAnyChunks) {
  for (const int chunk_tokens : {1000, 1, 7, 20}) {
    BlockTable sequence = NewSequence();
    const std::vector<float> logits = model_->Prefill(sequence, golden_.prompt, chunk_tokens);
    EXPECT_LT(MaxAbsDifference(logits, golden_.logits), kTolerance) << "chunks of " << chunk_tokens;
  }
}

TEST_P(TinyModelsTest, DecodeEqualsTransformers) {
  BlockTable sequence = NewSequence();
  const std::vector<float> logits = model_->Decode(sequence, golden_.prompt);
  EXPECT_LT(MaxAbsDifference(logits, golden_.logits), kTolerance);
}

TEST_P(TinyModelsTest, GreedyContinuationEqualsTransformers) {
  BlockTable sequence = NewSequence();
  const std::vector<float> logits = model_->Prefill(sequence, golden_.prompt, 32);
  const auto last = absl::MakeConstSpan(logits).last(model_->vocab_size());
  EXPECT_EQ(model_->Greedy(sequence, last, static_cast<int>(golden_.greedy.size())),
            golden_.greedy);
}

INSTANTIATE_TEST_SUITE_P(All, TinyModelsTest, ::testing::ValuesIn(AllCases()),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           std::string name = info.param.model;
                           for (char& c : name) {
                             if (!isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

// The script writes one case per architecture, RoPE kind and format; none may go missing unseen.
TEST(TinyModelsSetTest, IsComplete) { EXPECT_EQ(AllCases().size(), 31); }

}  // namespace
}  // namespace tokenbutler
