#include "engine/tokenizer/unicode.h"

#include <cstdint>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

TEST(UnicodeTest, WellFormedAndIllFormed) {
  for (const char* text : {"", "a", "é", "中", "😀", "\uFFFD", "\U0010FFFF"}) {
    EXPECT_TRUE(IsWellFormedUtf8(text)) << text;
    EXPECT_EQ(ReplaceIllFormedUtf8(text), text);
  }
}

// The examples of the Unicode standard, tables 3-8 to 3-11.
TEST(UnicodeTest, ReplacesMaximalSubparts) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(ReplaceIllFormedUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(ReplaceIllFormedUtf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(ReplaceIllFormedUtf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(ReplaceIllFormedUtf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

TEST(UnicodeTest, TruncatedIsWhatMoreBytesCouldComplete) {
  EXPECT_TRUE(ReadUtf8("\xF0\x9F\x98", 0).truncated);
  EXPECT_TRUE(ReadUtf8("\xE2", 0).truncated);
  EXPECT_FALSE(ReadUtf8("\xE2\x41", 0).truncated);
  EXPECT_FALSE(ReadUtf8("\xFF", 0).truncated);
  EXPECT_FALSE(ReadUtf8("\x80", 0).truncated);
}

TEST(UnicodeTest, EveryCodePointSurvives) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, &text);
    const Utf8Char read = ReadUtf8(text, 0);
    ASSERT_TRUE(read.well_formed) << static_cast<uint32_t>(c);
    ASSERT_EQ(static_cast<uint32_t>(read.code_point), static_cast<uint32_t>(c));
    ASSERT_EQ(static_cast<size_t>(read.length), text.size());
  }
}

TEST(UnicodeTest, Classes) {
  EXPECT_EQ(ClassesOf(U'a'), kLetterClass | kLowerLikeClass | kWordClass);
  EXPECT_EQ(ClassesOf(U'A'), kLetterClass | kUpperLikeClass | kWordClass);
  EXPECT_EQ(ClassesOf(U'中'), kLetterClass | kUpperLikeClass | kLowerLikeClass | kWordClass);
  EXPECT_EQ(ClassesOf(U'7'), kNumberClass | kDigitClass | kWordClass);
  EXPECT_EQ(ClassesOf(U'½'), kNumberClass | kDigitClass);
  EXPECT_EQ(ClassesOf(U' '), kSpaceClass);
  EXPECT_EQ(ClassesOf(0x3000), kSpaceClass);
  EXPECT_EQ(ClassesOf(0x200B), 0);  // zero width, but no space
  EXPECT_EQ(ClassesOf(0x301), kUpperLikeClass | kLowerLikeClass | kWordClass);
  EXPECT_EQ(ClassesOf(U'_'), kWordClass);
  EXPECT_EQ(ClassesOf(0x11DE0),
            kDigitClass);  // a digit of Unicode 17, which the patterns are older than
  EXPECT_EQ(ClassesOf(0x10FFFF), 0);
}

TEST(NfcTest, ComposesAndReorders) {
  EXPECT_EQ(ToNfc("e\u0301"), "é");
  EXPECT_EQ(ToNfc("é"), "é");
  EXPECT_EQ(ToNfc("a\u0301\u0323"), "\u1EA1\u0301");
  EXPECT_EQ(ToNfc("\u1100\u1161\u11A8"), "각");
  EXPECT_EQ(ToNfc("\u212B"), "Å");
  EXPECT_EQ(ToNfc("ﬁ"), "ﬁ");  // a compatibility character stays
  EXPECT_EQ(ToNfc("plain text"), "plain text");
  EXPECT_EQ(ToNfc(""), "");
}

TEST(NfcTest, MarksNewerThanHuggingFacesUnicodeStayInPlace) {
  EXPECT_EQ(ToNfc("a\u0301\u08D3"), "á\u08D3");        // U+08D3 has class 220 since Unicode 11
  EXPECT_EQ(ToNfc("a\u08D3\u0301"), "a\u08D3\u0301");  // it is in the way
  EXPECT_EQ(ToNfc("\U00011935\U00011930"), "\U00011935\U00011930");
}

TEST(NfcTest, IsIdempotent) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      const char32_t bases[] = {U'a', U'o', U'ö', 0x1100, 0x1161, 0xAC00, 0x915, 0x1E9B};
      AppendUtf8(random() % 2 ? bases[random() % 8] : 0x300 + random() % 0x70, &text);
    }
    const std::string once = ToNfc(text);
    ASSERT_EQ(ToNfc(once), once);
    ASSERT_TRUE(IsWellFormedUtf8(once));
  }
}

}  // namespace
}  // namespace tokenbutler
