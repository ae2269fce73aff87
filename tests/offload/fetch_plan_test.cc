#include "offload/fetch_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/slot_map.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FetchPlanTest, FetchesWhatIsMissingAndEvictsTheLongestUnusedOfTheUnwanted) {
  const std::vector<int32_t> tokens = {3, 5, 8, 13};
  const std::vector<float> scores = {2, 1, 0, 1};
  const std::vector<int32_t> last_used = {4, 7, 1, 4};
  const std::vector<uint8_t> arriving = {0, 0, 0, 0};
  FetchPlan plan;
  PlanFetch({4, 8, 20}, {1, 1, 1}, {tokens, scores, last_used, arriving}, 0, &plan);
  EXPECT_THAT(plan.found, ElementsAre(-1, 2, -1));
  EXPECT_THAT(plan.fetches, ElementsAre(0, 2));
  // Token 8 is unused for longest but is wanted. Two have to go.
  EXPECT_THAT(plan.evictions, ElementsAre(0, 3));
  // Of 3 and 13, last used together, 13 mattered less.
  PlanFetch({4, 8, 20}, {1, 1, 1}, {tokens, scores, last_used, arriving}, 1, &plan);
  EXPECT_THAT(plan.evictions, ElementsAre(3));
  PlanFetch({4, 8, 20}, {1, 1, 1}, {tokens, scores, last_used, arriving}, 2, &plan);
  EXPECT_THAT(plan.evictions, IsEmpty());
}

TEST(FetchPlanTest, TakesTheMostImportantWhenNoMoreFit) {
  const std::vector<int32_t> tokens = {3};
  const std::vector<float> scores = {9};
  const std::vector<int32_t> last_used = {1};
  const std::vector<uint8_t> arriving = {1};  // stays, whatever its score
  FetchPlan plan;
  PlanFetch({4, 8, 20}, {1, 3, 2}, {tokens, scores, last_used, arriving}, 2, &plan);
  EXPECT_EQ(plan.num_missing, 3);
  EXPECT_THAT(plan.fetches, ElementsAre(1, 2));
  EXPECT_THAT(plan.evictions, IsEmpty());
}

TEST(FetchPlanTest, EmptyListsAndNoSlotsAtAll) {
  FetchPlan plan;
  PlanFetch({}, {}, {}, 5, &plan);
  EXPECT_THAT(plan.fetches, IsEmpty());
  PlanFetch({1, 2}, {1, 1}, {}, 0, &plan);
  EXPECT_THAT(plan.fetches, IsEmpty());
  EXPECT_EQ(plan.num_missing, 2);
}

// A slot map as anybody would write it.
class NaiveSlots {
 public:
  struct Entry {
    float score;
    int32_t last_used;
    bool arriving;
  };

  explicit NaiveSlots(size_t capacity) : capacity_(capacity) {}

  // Returns the tokens that travel.
  std::set<int32_t> Want(const std::map<int32_t, float>& wanted, int32_t step) {
    std::vector<std::pair<float, int32_t>> missing;
    for (const auto& [token, score] : wanted) {
      const auto it = entries_.find(token);
      if (it == entries_.end()) {
        missing.emplace_back(-score, token);
      } else {
        it->second.score = score;
        it->second.last_used = step;
      }
    }
    std::sort(missing.begin(), missing.end());
    std::set<int32_t> travelling;
    // The most important first, each in the place of the longest unused that may go.
    size_t room = capacity_ - entries_.size();
    std::vector<std::tuple<int32_t, float, int32_t>> victims;
    for (const auto& [token, entry] : entries_) {
      if (!entry.arriving && wanted.count(token) == 0) {
        victims.emplace_back(entry.last_used, entry.score, token);
      }
    }
    std::sort(victims.begin(), victims.end());
    size_t next = 0;
    for (const auto& [negated, token] : missing) {
      if (room > 0) {
        --room;
      } else if (next < victims.size()) {
        entries_.erase(std::get<2>(victims[next++]));
      } else {
        break;
      }
      entries_[token] = {-negated, step, true};
      travelling.insert(token);
    }
    return travelling;
  }
  void SetArrived() {
    for (auto& [token, entry] : entries_) entry.arriving = false;
  }
  const std::map<int32_t, Entry>& entries() const { return entries_; }

 private:
  size_t capacity_;
  std::map<int32_t, Entry> entries_;
};

class SlotMapRandomTest : public testing::TestWithParam<int> {};

TEST_P(SlotMapRandomTest, AgreesWithAModelAndNoSlotHasTwoTokens) {
  std::mt19937 random(GetParam());
  const int capacity = static_cast<int>(random() % 40);
  SlotMap map(capacity);
  NaiveSlots naive(static_cast<size_t>(capacity));
  std::map<int32_t, int32_t> slot_of;  // by what Apply said
  FetchPlan plan;
  std::vector<int32_t> slots;
  for (int32_t step = 1; step < 400; ++step) {
    std::map<int32_t, float> wanted;
    const int count = static_cast<int>(random() % 50);
    for (int i = 0; i < count; ++i) wanted[random() % 90] = static_cast<float>(random() % 8);
    std::vector<int32_t> tokens;
    std::vector<float> scores;
    for (const auto& [token, score] : wanted) {
      tokens.push_back(token);
      scores.push_back(score);
    }
    PlanFetch(tokens, scores, map.tokens(), map.num_free(), &plan);
    map.Apply(plan, tokens, scores, step, &slots);

    std::set<int32_t> travelling;
    for (const int32_t i : plan.fetches) {
      ASSERT_TRUE(travelling.insert(tokens[i]).second) << "a plan has a token twice";
    }
    ASSERT_EQ(travelling, naive.Want(wanted, step));
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool is_resident = naive.entries().count(tokens[i]) > 0;
      ASSERT_EQ(slots[i] >= 0, is_resident) << tokens[i];
      if (!is_resident) continue;
      ASSERT_LT(slots[i], capacity);
      if (travelling.count(tokens[i]) == 0) {
        ASSERT_EQ(slot_of[tokens[i]], slots[i]) << "a resident token has moved";
      }
      slot_of[tokens[i]] = slots[i];
    }
    ASSERT_EQ(map.size(), naive.entries().size());
    ASSERT_EQ(map.num_free(), capacity - map.size());
    std::set<int32_t> taken;
    size_t at = 0;
    for (const auto& [token, entry] : naive.entries()) {
      ASSERT_EQ(map.tokens().tokens[at], token);
      ASSERT_EQ(map.tokens().scores[at], entry.score);
      ASSERT_EQ(map.tokens().last_used[at], entry.last_used);
      ASSERT_EQ(map.tokens().arriving[at] != 0, entry.arriving);
      ASSERT_TRUE(taken.insert(slot_of[token]).second) << "two tokens in one slot";
      ++at;
    }
    if (random() % 3 != 0) {
      map.SetArrived();
      naive.SetArrived();
    }
    if (random() % 100 == 0) {
      map.SetArrived();
      map.Clear();
      naive = NaiveSlots(static_cast<size_t>(capacity));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SlotMapRandomTest, testing::Range(0, 30));

}  // namespace
}  // namespace tokenbutler
