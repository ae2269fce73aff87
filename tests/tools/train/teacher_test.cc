#include "tools/train/teacher.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/train/training_fixture.h"
#include "tools/train/sampled_rows.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

// Chunks of 40 tokens: rows lie in several, and a pass that is asked for some of them gives the
// same values as one that is asked for all.
TEST(TeacherTest, RowsAreThoseOfTheirPositions) {
  TinyTeacher teacher;
  const std::vector<int32_t> tokens = *RepeatingSequences().Training(0);
  std::vector<int> all(tokens.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  TeacherPass whole, some;
  const std::vector<int> rows = {0, 39, 40, 77, 95};
  for (const LayerPoint point : {LayerPoint::kInput, LayerPoint::kAfterAttention}) {
    ASSERT_TRUE(teacher->Run(tokens, {all, point, 2}, &whole).ok());
    ASSERT_TRUE(teacher->Run(tokens, {rows, point, 2}, &some).ok());
    ASSERT_EQ(some.queries.size(), 5u);
    ASSERT_EQ(some.hidden.size(), 2u);  // of layers 0 and 2; 4 has nothing to predict
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int l = 0; l < 5; ++l) {
        for (int i = 0; i < 64; ++i) {
          EXPECT_EQ(some.queries[l][r * 64 + i], whole.queries[l][rows[r] * 64 + i]);
        }
      }
      for (int p = 0; p < 2; ++p) {
        for (int i = 0; i < 32; ++i) {
          EXPECT_EQ(some.hidden[p][r * 32 + i], whole.hidden[p][rows[r] * 32 + i]);
        }
      }
    }
  }
}

// The steps of a sequence share its rows out among themselves.
TEST(TeacherTest, PartsOfAPassAreItsRows) {
  TinyTeacher teacher;
  const std::vector<int32_t> tokens = *RepeatingSequences().Training(0);
  TeacherPass pass, part, alone;
  ASSERT_TRUE(teacher->Run(tokens, {.rows = {50, 60, 70, 80, 95}}, &pass).ok());
  pass.Take(0, 1, &part);
  EXPECT_EQ(part.rows, pass.rows);
  EXPECT_EQ(part.queries, pass.queries);
  pass.Take(1, 2, &part);
  EXPECT_EQ(part.rows, std::vector<int>({60, 80}));
  ASSERT_TRUE(teacher->Run(tokens, {.rows = {60, 80}}, &alone).ok());
  EXPECT_EQ(part.num_tokens, alone.num_tokens);
  EXPECT_EQ(part.queries, alone.queries);
  EXPECT_EQ(part.hidden, alone.hidden);
}

TEST(TeacherTest, RefusesWhatItCannotRun) {
  TinyTeacher teacher;
  TeacherPass pass;
  const auto message = [&](const std::vector<int32_t>& tokens, const std::vector<int>& rows) {
    return std::string(teacher->Run(tokens, {.rows = rows}, &pass).message());
  };
  EXPECT_THAT(message({}, {}), HasSubstr("a sequence has 0 tokens, must have 1 to 512"));
  EXPECT_THAT(message(std::vector<int32_t>(513), {0}), HasSubstr("513 tokens"));
  EXPECT_THAT(message({1, 2, 3}, {1, 1}), HasSubstr("rows[1] is 1, must be in [2, 3)"));
  EXPECT_THAT(message({1, 2, 3}, {3}), HasSubstr("rows[0] is 3, must be in [0, 3)"));
  EXPECT_THAT(message({1, 708, 3}, {2}), HasSubstr("a token id is 708"));
}

TEST(SampledRowsTest, AreTheLastOneAndOthersOfTheLastHalf) {
  const std::vector<int> rows = SampleRows(1000, 64, 1, 5);
  ASSERT_EQ(rows.size(), 64u);
  EXPECT_EQ(rows.back(), 999);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_GE(rows[i], i == 0 ? 500 : rows[i - 1] + 1);
  }
  EXPECT_EQ(SampleRows(1000, 64, 1, 5), rows);
  EXPECT_NE(SampleRows(1000, 64, 1, 6), rows);
  EXPECT_NE(SampleRows(1000, 64, 2, 5), rows);
  EXPECT_EQ(SampleRows(10, 64, 1, 5), std::vector<int>({5, 6, 7, 8, 9}));
  EXPECT_EQ(SampleRows(1, 1, 1, 0), std::vector<int>({0}));
}

}  // namespace
}  // namespace tokenbutler
