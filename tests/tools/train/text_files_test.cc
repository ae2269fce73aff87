#include "tools/train/text_files.h"

#include <zlib.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temporary_folder.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class TextFilesTest : public testing::Test {
 protected:
  std::string WriteGz(const std::string& name, const std::string& text) {
    const std::string path = folder_.path() / name;
    gzFile file = gzopen(path.c_str(), "wb");
    EXPECT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
              static_cast<int>(text.size()));
    EXPECT_EQ(gzclose(file), Z_OK);
    return path;
  }
  // The documents of a file, names without the folder.
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Read(
      const std::string& path, const std::string& field = "text") {
    std::vector<std::pair<std::string, std::string>> documents;
    RETURN_IF_ERROR(ReadDocuments(path, field, [&](const std::string& name, std::string_view text) {
      documents.emplace_back(std::filesystem::path(name).filename().string(), text);
      return absl::OkStatus();
    }));
    return documents;
  }
  std::string Error(const std::string& path, const std::string& field = "text") {
    return std::string(Read(path, field).status().message());
  }

  TemporaryFolder folder_;
};

TEST_F(TextFilesTest, AFileIsADocument) {
  EXPECT_THAT(*Read(folder_.Write("a.txt", "one\ntwo")), ElementsAre(Pair("a.txt", "one\ntwo")));
  EXPECT_THAT(*Read(WriteGz("b.txt.gz", "one")), ElementsAre(Pair("b.txt.gz", "one")));
  EXPECT_THAT(*Read(folder_.Write("empty.txt", "")), ElementsAre(Pair("empty.txt", "")));
  std::string large;
  for (int i = 0; i < 100000; ++i) large += "line " + std::to_string(i) + "\n";
  EXPECT_THAT(*Read(WriteGz("large.txt.gz", large)), ElementsAre(Pair("large.txt.gz", large)));
}

TEST_F(TextFilesTest, ALineOfJsonIsADocument) {
  const std::string lines =
      "{\"text\": \"one\", \"id\": 1}\n\n  {\"text\": \"t\\u00e4u\\n\"}\r\n{\"text\": \"end\"}";
  EXPECT_THAT(*Read(folder_.Write("a.jsonl", lines)),
              ElementsAre(Pair("a.jsonl:1", "one"), Pair("a.jsonl:3", "t\u00e4u\n"),
                          Pair("a.jsonl:4", "end")));
  EXPECT_THAT(*Read(WriteGz("b.jsonl.gz", "{\"body\":\"x\"}\n"), "body"),
              ElementsAre(Pair("b.jsonl.gz:1", "x")));
  // Lines longer than a piece of reading.
  const std::string longer(200000, 'x');
  EXPECT_THAT(*Read(folder_.Write("c.jsonl", "{\"text\":\"" + longer + "\"}\n{\"text\":\"y\"}\n")),
              ElementsAre(Pair("c.jsonl:1", longer), Pair("c.jsonl:2", "y")));
}

TEST_F(TextFilesTest, BadLinesAreNamed) {
  EXPECT_THAT(Error(folder_.Write("a.jsonl", "{\"text\": \"x\"}\n{\"text\": \n")),
              HasSubstr("a.jsonl:2 is not JSON"));
  EXPECT_THAT(Error(folder_.Write("b.jsonl", "[1]")), HasSubstr("b.jsonl:1 is not a JSON object"));
  EXPECT_THAT(Error(folder_.Write("c.jsonl", "{\"body\": \"x\"}\n")),
              HasSubstr("c.jsonl:1 has no member \"text\""));
  EXPECT_THAT(Error(folder_.Write("d.jsonl", "{\"text\": 7}\n")),
              HasSubstr("d.jsonl:1: \"text\" is not a text"));
  EXPECT_THAT(Error(folder_.Write("e.jsonl", "{\"text\": \"x\"}\n{\"text\": \"\xff\"}\n")),
              HasSubstr("e.jsonl:2 is not UTF-8: byte 10 is 0xff"));
}

TEST_F(TextFilesTest, OtherBytesThanUtf8AreNamed) {
  EXPECT_THAT(Error(folder_.Write("a.txt", "gr\xfc\xdf")),
              HasSubstr("a.txt is not UTF-8: byte 2 is 0xfc"));
}

TEST_F(TextFilesTest, DamagedAndMissingFilesAreErrors) {
  std::string text;
  for (int i = 0; i < 50000; ++i) text += std::to_string(i * 7919);
  const std::string path = WriteGz("a.txt.gz", text);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_EQ(Read(path).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Error(path), HasSubstr("a.txt.gz is damaged: "));
  EXPECT_EQ(Read(folder_.path() / "none.txt").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Error(folder_.path()), HasSubstr("cannot be read: Is a directory"));
}

TEST_F(TextFilesTest, ErrorsOfTheSinkEndTheReading) {
  int count = 0;
  const absl::Status status =
      ReadDocuments(folder_.Write("a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\"}\nnot JSON\n"),
                    "text", [&](const std::string&, std::string_view) {
                      ++count;
                      return InternalError("enough");
                    });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(count, 1);
}

TEST_F(TextFilesTest, AFolderStandsForItsTexts) {
  std::filesystem::create_directories(folder_.path() / "b/c");
  std::filesystem::create_directories(folder_.path() / ".hidden");
  const std::string z = folder_.Write("z.txt", ""), md = folder_.Write("b/readme.md", "");
  const std::string jsonl = folder_.Write("b/c/x.jsonl.gz", "");
  folder_.Write("b/picture.png", "");
  folder_.Write("manifest.json", "");
  folder_.Write(".hidden/a.txt", "");
  folder_.Write("b/.a.txt", "");
  const std::string other = folder_.Write("b/notes", "");
  const auto files = ListTextFiles({folder_.path(), z, other, folder_.path() / "b/../z.txt"});
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(*files, ElementsAre(jsonl, other, md, z));
  EXPECT_EQ(ListTextFiles({"/nowhere"}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ListTextFiles({folder_.path() / ".hidden"}).status().message()),
              testing::IsEmpty());
  std::filesystem::create_directories(folder_.path() / "empty");
  EXPECT_THAT(std::string(ListTextFiles({folder_.path() / "empty"}).status().message()),
              HasSubstr("empty holds no .txt, .md or .jsonl file"));
}

}  // namespace
}  // namespace tokenbutler
