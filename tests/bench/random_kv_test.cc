#include "bench/random_kv.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tools/scoring/measured_model.h"

namespace tokenbutler {
namespace {

TEST(RandomKvTest, RandomRowsHaveTheSizeOfRealOnes) {
  ComputePool pool(2);
  const auto model = MeasuredModel::Create(
      {.model = std::string(TOKENBUTLER_TEST_DATA) + "/tiny_models/qwen2-none",
       .dtype = "float32",
       .context_len = 4096,
       .num_blocks = [](const SelectionResources&) { return 40; }},
      pool);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto sequence = MeasuredSequence::Create(**model, {}, 2048);
  ASSERT_TRUE(sequence.ok());
  ASSERT_TRUE(AppendRandomRows(**model, 2000, sequence->get()).ok());
  EXPECT_EQ((*sequence)->table().num_tokens, 2000);
  // Real rows of the same model.
  const auto real = MeasuredSequence::Create(**model, {}, 500);
  ASSERT_TRUE(real.ok());
  std::vector<int32_t> tokens(500);
  for (int i = 0; i < 500; ++i) tokens[i] = (i * 37 + i / 7) % 96;
  ASSERT_TRUE((*real)->Prefill(tokens, 64).ok());
  const auto mean_square = [&](const MeasuredSequence& s, int layer, int head, int num_tokens) {
    double sum = 0;
    for (int t = 0; t < num_tokens; ++t) {
      const auto* row =
          reinterpret_cast<const float*>((*model)->store().key_row(s.table(), layer, head, t));
      for (int i = 0; i < (*model)->layout().head_dim; ++i) sum += row[i] * row[i];
    }
    return sum / num_tokens;
  };
  for (int layer = 0; layer < (*model)->layout().num_layers; ++layer) {
    for (int head = 0; head < (*model)->layout().num_kv_heads; ++head) {
      const double ratio =
          mean_square(**sequence, layer, head, 2000) / mean_square(**real, layer, head, 500);
      EXPECT_GT(ratio, 0.5) << layer << " " << head;
      EXPECT_LT(ratio, 2) << layer << " " << head;
    }
  }
  ASSERT_TRUE((*sequence)->Decode(3).ok());
  for (const float logit : (*model)->runner().decode_logits(0)) ASSERT_TRUE(std::isfinite(logit));
}

}  // namespace
}  // namespace tokenbutler
