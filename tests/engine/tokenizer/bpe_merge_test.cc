#include "engine/tokenizer/bpe_merge.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using testing::ElementsAre;

std::vector<int32_t> Merge(const MergeTable& table, const std::vector<int32_t>& symbols) {
  BpeMerger merger(&table);
  std::vector<int32_t> ids;
  merger.Merge(symbols, &ids);
  return ids;
}

// The textbook: scan for the lowest rank, merge its leftmost occurrence, begin again.
std::vector<int32_t> MergeByScanning(const MergeTable& table, std::vector<int32_t> symbols) {
  while (true) {
    const MergeTable::Merge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const MergeTable::Merge* merge = table.Find(symbols[i], symbols[i + 1]);
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        at = i;
      }
    }
    if (best == nullptr) return symbols;
    symbols[at] = best->merged_id;
    symbols.erase(symbols.begin() + static_cast<int64_t>(at) + 1);
  }
}

TEST(BpeMergeTest, NothingAndOneSymbol) {
  MergeTable table;
  table.Add(1, 1, {.rank = 0, .merged_id = 2});
  EXPECT_THAT(Merge(table, {}), ElementsAre());
  EXPECT_THAT(Merge(table, {1}), ElementsAre(1));
}

TEST(BpeMergeTest, LowerRankFirst) {
  MergeTable table;  // "abc" with b+c before a+b
  table.Add(1, 2, {.rank = 1, .merged_id = 10});
  table.Add(2, 3, {.rank = 0, .merged_id = 11});
  EXPECT_THAT(Merge(table, {1, 2, 3}), ElementsAre(1, 11));
}

TEST(BpeMergeTest, LeftmostAmongEquals) {
  MergeTable table;
  table.Add(1, 1, {.rank = 0, .merged_id = 2});
  EXPECT_THAT(Merge(table, {1, 1, 1, 1, 1}), ElementsAre(2, 2, 1));
}

TEST(BpeMergeTest, AppendsAndKeepsNothingFromTheWordBefore) {
  MergeTable table;
  table.Add(1, 2, {.rank = 0, .merged_id = 3});
  BpeMerger merger(&table);
  std::vector<int32_t> ids = {9};
  merger.Merge({1, 2, 1, 2, 1}, &ids);
  merger.Merge({2, 1, 2}, &ids);
  EXPECT_THAT(ids, ElementsAre(9, 3, 3, 1, 2, 3));
}

TEST(BpeMergeTest, LaterRankOfAPairCounts) {
  MergeTable table;
  table.Add(1, 2, {.rank = 0, .merged_id = 10});
  table.Add(2, 3, {.rank = 1, .merged_id = 11});
  table.Add(1, 2, {.rank = 2, .merged_id = 10});
  EXPECT_THAT(Merge(table, {1, 2, 3}), ElementsAre(1, 11));
}

TEST(BpeMergeTest, EqualsScanningOnRandomVocabularies) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    MergeTable table;
    int32_t next_id = 4;
    const int num_merges = 1 + static_cast<int>(random() % 40);
    for (int rank = 0; rank < num_merges; ++rank) {
      const auto left = static_cast<int32_t>(random() % next_id);
      const auto right = static_cast<int32_t>(random() % next_id);
      if (table.Find(left, right) == nullptr) {
        table.Add(left, right, {.rank = rank, .merged_id = next_id++});
      }
    }
    std::vector<int32_t> symbols(random() % 60);
    for (int32_t& symbol : symbols) symbol = static_cast<int32_t>(random() % 4);
    ASSERT_EQ(Merge(table, symbols), MergeByScanning(table, symbols)) << "trial " << trial;
  }
}

}  // namespace
}  // namespace tokenbutler
