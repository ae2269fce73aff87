#include "engine/stop_matcher.h"

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

struct Found {
  size_t end = std::string::npos;
  size_t length = 0;
  bool operator==(const Found&) const = default;
};

// By comparing every string at every end.
Found SlowFind(const std::vector<std::string>& strings, const std::string& text) {
  for (size_t end = 0; end <= text.size(); ++end) {
    Found best;
    for (const std::string& s : strings) {
      if (s.empty() || s.size() > end || text.compare(end - s.size(), s.size(), s) != 0) continue;
      if (s.size() > best.length) best = {end, s.size()};
    }
    if (best.length > 0) return best;
  }
  return {};
}

size_t SlowHeldBack(const std::vector<std::string>& strings, const std::string& text) {
  size_t longest = 0;
  for (const std::string& s : strings) {
    for (size_t length = 1; length <= std::min(s.size(), text.size()); ++length) {
      if (text.compare(text.size() - length, length, s, 0, length) == 0) {
        longest = std::max(longest, length);
      }
    }
  }
  return longest;
}

std::string RandomText(std::mt19937* random, int max_length, int letters) {
  std::string text((*random)() % (max_length + 1), ' ');
  for (char& c : text) c = static_cast<char>('a' + (*random)() % letters);
  return text;
}

TEST(StopMatcherTest, AgreesWithASlowSearchForAnySplit) {
  std::mt19937 random(1);
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> strings(1 + random() % 4);
    for (std::string& s : strings) s = RandomText(&random, 6, 2);
    const std::string text = RandomText(&random, 30, 2);
    StopMatcher matcher(strings);
    Found found;
    std::string read;
    while (read.size() < text.size()) {
      const std::string piece = text.substr(read.size(), random() % 5);
      if (const auto match = matcher.Advance(piece)) {
        found = {read.size() + match->end, match->length};
        EXPECT_EQ(strings[match->string_index].size(), match->length);
        break;
      }
      read += piece;
      ASSERT_EQ(matcher.held_back(), SlowHeldBack(strings, read)) << read;
    }
    ASSERT_EQ(found, SlowFind(strings, text)) << text;
  }
}

TEST(StopMatcherTest, PassedOverMatchesStillLetALaterOneEnd) {
  StopMatcher matcher({"aba"});
  EXPECT_FALSE(matcher.Advance("aba", /*report=*/false));
  const auto match = matcher.Advance("bax");
  ASSERT_TRUE(match);
  EXPECT_EQ(match->end, 2u);
}

TEST(StopMatcherTest, EmptyStringsNeverMatch) {
  StopMatcher matcher({"", ""});
  EXPECT_FALSE(matcher.Advance("abc"));
  EXPECT_EQ(matcher.held_back(), 0u);
}

TEST(StopMatcherTest, EveryByteValueCanBeAnEdge) {
  std::vector<std::string> strings;
  for (int i = 0; i < 256; ++i) strings.push_back(std::string(1, static_cast<char>(i)) + "!");
  StopMatcher matcher(strings);
  const auto match = matcher.Advance("\x80\xff\xfe!");
  ASSERT_TRUE(match);
  EXPECT_EQ(match->string_index, 0xfe);
}

// Many long strings that almost match everywhere: a search per string would take minutes.
TEST(StopMatcherTest, TimeIsLinear) {
  std::vector<std::string> strings;
  for (int i = 1; i <= 64; ++i) strings.push_back(std::string(1000 + i, 'a') + "b");
  StopMatcher matcher(strings);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(matcher.Advance(std::string(2000, 'a')));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_TRUE(matcher.Advance("b"));
}

}  // namespace
}  // namespace tokenbutler
