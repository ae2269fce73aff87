#include "tools/eval/row_columns.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Json = Checkpoint::Json;

TEST(RowColumnsTest, MissingValuesArePassedOver) {
  const std::vector<Json> rows = {{{"a", 1}}, {{"b", 5}}, {{"a", nullptr}}, {{"a", 4.5}}};
  EXPECT_THAT(ColumnOf(rows, "a"), ElementsAre(1, 4.5));
  EXPECT_EQ(MeanOf(rows, "a"), 2.75);
  EXPECT_TRUE(MeanOf(rows, "c").is_null());
}

TEST(RowColumnsTest, RowsFindTheirPartners) {
  auto checkpoint = Checkpoint::Open("", Json::object());
  ASSERT_TRUE(checkpoint.ok());
  for (const Json& row : std::vector<Json>{{{"text", "x"}, {"setting", "a"}, {"kl", 1}},
                                           {{"text", "x"}, {"setting", "b"}, {"kl", 2}},
                                           {{"text", "y"}, {"setting", "b"}, {"kl", 3}},
                                           {{"text", "z"}, {"setting", "a"}, {"kl", 4}},
                                           {{"text", "z"}, {"setting", "b"}, {"kl", 5}}}) {
    ASSERT_TRUE(checkpoint->Add(row).ok());
  }
  const PairedColumn pairs = PairUp(*checkpoint, checkpoint->FindAll({{"setting", "b"}}), {"text"},
                                    {{"setting", "a"}}, "kl");
  EXPECT_THAT(pairs.own, ElementsAre(2, 5));
  EXPECT_THAT(pairs.partners, ElementsAre(1, 4));
  EXPECT_THAT(PairUp(*checkpoint, checkpoint->rows(), {"text"}, {{"setting", "c"}}, "kl").own,
              IsEmpty());
}

TEST(RowColumnsTest, ATieIsCalledATie) {
  EXPECT_EQ(Verdict({.mean = 1, .low = -1, .high = 3}, true), "tie");
  EXPECT_EQ(Verdict({.mean = 0, .low = 0, .high = 0}, false), "tie");
  EXPECT_EQ(Verdict({.mean = 2, .low = 1, .high = 3}, true), "worse");
  EXPECT_EQ(Verdict({.mean = 2, .low = 1, .high = 3}, false), "better");
  EXPECT_EQ(Verdict({.mean = -2, .low = -3, .high = -1}, true), "better");
  EXPECT_EQ(Verdict({.mean = -2, .low = -3, .high = -1}, false), "worse");
}

}  // namespace
}  // namespace tokenbutler
