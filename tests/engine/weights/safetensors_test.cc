#include "engine/weights/safetensors.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/allocation_counter.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/safetensors_writer.h"
#include "tests/testing/temporary_folder.h"

namespace tokenbutler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr size_t kMaxAllocation = size_t{1} << 20;
constexpr std::string_view kHeader = R"({"__metadata__":{"format":"pt"},)"
                                     R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
                                     R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   )";
constexpr size_t kDataBytes = 20;

std::string GoodFile() { return SafetensorsBytes(kHeader, std::string(kDataBytes, '\1')); }

std::string Message(const absl::Status& status) { return std::string(status.message()); }

std::string ParseError(const std::string& bytes) {
  const AllocationCounter counter;
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Parse(AsBytes(bytes));
  EXPECT_LT(counter.total_bytes(), kMaxAllocation);
  return file.ok() ? "no error" : Message(file.status());
}

TEST(SafetensorsTest, ReadsWhatWasWritten) {
  const std::string bytes = GoodFile();
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Parse(AsBytes(bytes));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 2u);
  const SafetensorsTensor* b = file->FindTensor("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->type, SafetensorsType::kBF16);
  EXPECT_THAT(b->shape, ElementsAre(2, 3));
  EXPECT_EQ(b->data.data(), AsBytes(bytes).data() + 8 + kHeader.size() + 8);
  EXPECT_EQ(b->data.size(), 12u);
  EXPECT_EQ(file->FindTensor("__metadata__"), nullptr);
}

TEST(SafetensorsTest, ReadsScalarsAndEmptyTensors) {
  const std::string bytes =
      SafetensorsBytes(R"({"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                       R"("e":{"dtype":"F32","shape":[4,0],"data_offsets":[8,8]}})",
                       "12345678");
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Parse(AsBytes(bytes));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->FindTensor("s")->shape.empty());
  EXPECT_TRUE(file->FindTensor("e")->data.empty());
}

TEST(SafetensorsDamageTest, EveryHeaderLengthIsChecked) {
  const std::string good = GoodFile();
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{kHeader.size() - 4},
        uint64_t{kHeader.size() + 1}, uint64_t{good.size() - 7}, uint64_t{good.size()},
        uint64_t{100'000'001}, uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{1} << 62,
        ~uint64_t{0} - 7, ~uint64_t{0} - 1, ~uint64_t{0}}) {
    std::string bad = good;
    std::memcpy(bad.data(), &length, sizeof(length));
    EXPECT_THAT(ParseError(bad), HasSubstr("header")) << length;
  }
}

TEST(SafetensorsDamageTest, EveryTruncationIsAnError) {
  const std::string good = GoodFile();
  for (size_t length = 0; length < good.size(); ++length) {
    const std::vector<char> cut(good.begin(), good.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_FALSE(SafetensorsFile::Parse(AsBytes({cut.data(), cut.size()})).ok()) << length;
  }
}

TEST(SafetensorsDamageTest, EveryChangedByteOfTheHeaderIsAnErrorOrHarmless) {
  const std::string good = GoodFile();
  for (size_t at = 0; at < 8 + kHeader.size(); ++at) {
    for (const char value : std::string("\0\"09{}[]-.e\x80\xff", 13)) {
      std::string bad = good;
      bad[at] = value;
      const AllocationCounter counter;
      const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Parse(AsBytes(bad));
      ASSERT_LT(counter.total_bytes(), kMaxAllocation) << at;
      if (!file.ok()) continue;
      uint64_t sum = 0;
      for (const SafetensorsTensor& tensor : file->tensors()) {
        for (const std::byte b : tensor.data) sum += static_cast<uint64_t>(b);
      }
      EXPECT_GT(sum, 0u);
    }
  }
}

struct BadHeader {
  const char* name;
  const char* header;
  const char* message;  // a part of it
};

class BadHeaderTest : public testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaderTest, IsRefusedByName) {
  // 8 data bytes, as two floats need.
  EXPECT_THAT(ParseError(SafetensorsBytes(GetParam().header, "12345678")),
              HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadHeaderTest,
    testing::Values(
        BadHeader{"Space", " {}", "must start with '{'"},
        BadHeader{"NotJson", "{\"w\":}", "not valid JSON"},
        BadHeader{"InvalidUtf8", "{\"\xff\":{}}", "not valid JSON"},
        BadHeader{"TrailingText", "{} {}", "not valid JSON"},
        BadHeader{"NumberAsEntry", "{\"w\":1}", "the entry is a number"},
        BadHeader{"ArrayAsEntry", "{\"w\":[]}", "the entry is an array"},
        BadHeader{"NullAsEntry", "{\"w\":null}", "the entry is null"},
        BadHeader{"EmptyName", "{\"\":{}}", "name has 0 bytes"},
        BadHeader{"MetadataNumber", "{\"__metadata__\":{\"a\":1}}", "__metadata__ is a number"},
        BadHeader{"MetadataObject", "{\"__metadata__\":{\"a\":{}}}", "__metadata__ is an object"},
        BadHeader{"NoDtype", R"({"w":{"shape":[2],"data_offsets":[0,8]}})", "dtype is missing"},
        BadHeader{"NoShape", R"({"w":{"dtype":"F32","data_offsets":[0,8]}})", "shape is missing"},
        BadHeader{"NoOffsets", R"({"w":{"dtype":"F32","shape":[2]}})", "data_offsets is missing"},
        BadHeader{"UnknownDtype", R"({"w":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})",
                  "dtype is 'F31'"},
        BadHeader{"DtypeNumber", R"({"w":{"dtype":1,"shape":[2],"data_offsets":[0,8]}})",
                  "dtype is a number"},
        BadHeader{"DtypeTwice", R"({"w":{"dtype":"F32","dtype":"F32"}})", "dtype stands twice"},
        BadHeader{"UnknownField", R"({"w":{"stride":[1]}})", "field 'stride' is not known"},
        BadHeader{"ShapeString", R"({"w":{"shape":"2"}})", "shape is a string"},
        BadHeader{"ShapeNested", R"({"w":{"shape":[[2]]}})", "shape is an array"},
        BadHeader{"ShapeNegative", R"({"w":{"shape":[-2]}})", "shape holds -2"},
        BadHeader{"ShapeFloat", R"({"w":{"shape":[2.0]}})", "shape holds 2.0"},
        BadHeader{"ShapeHuge", R"({"w":{"shape":[18446744073709551615]}})",
                  "the product overflows"},
        BadHeader{"ShapeBeyond64", R"({"w":{"shape":[18446744073709551616]}})", "shape holds"},
        BadHeader{"ShapeOverflow", R"({"w":{"shape":[4294967296,4294967296]}})",
                  "the product overflows"},
        BadHeader{"ShapeRank9", R"({"w":{"shape":[1,1,1,1,1,1,1,1,1]}})", "more than 8 dimensions"},
        BadHeader{"ShapeWrong", R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
                  "data_offsets span 8 bytes, must span 12"},
        BadHeader{"OffsetsOne", R"({"w":{"data_offsets":[0]}})", "has 1 numbers, must have 2"},
        BadHeader{"OffsetsThree", R"({"w":{"data_offsets":[0,8,8]}})", "more than 2 numbers"},
        BadHeader{"OffsetsReversed", R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",
                  "begin must not be beyond end"},
        BadHeader{"OffsetsBeyondFile", R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
                  "only 8 data bytes"},
        BadHeader{
            "OffsetsHuge",
            R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551615]}})",
            "data_offsets span 7"},
        BadHeader{"Gap", R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  "begin at 4, must begin at 0"},
        BadHeader{"Uncovered", R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                  "cover 4 data bytes, but the file has 8"},
        BadHeader{"Overlap",
                  "{\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                  "\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                  "tensor 'w': data_offsets begin at 4, must begin at 8"},
        BadHeader{"Duplicate",
                  "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                  "\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                  "'w' stands twice"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(SafetensorsDamageTest, DeepNestingDoesNotOverflowTheStack) {
  const std::string deep = "{\"w\":" + std::string(200'000, '[');
  EXPECT_THAT(ParseError(SafetensorsBytes(deep, "")), HasSubstr("an array"));
}

// ---- Sharded folders ----------------------------------------------------------------------------

class ShardedFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    Write("one.safetensors",
          SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
    Write("two.safetensors",
          SafetensorsBytes(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
  }
  void Write(const std::string& name, const std::string& bytes) { temporary_.Write(name, bytes); }
  std::string Error(const std::string& index) {
    Write("model.safetensors.index.json", index);
    const absl::StatusOr<SafetensorsFolder> folder = SafetensorsFolder::Open(folder_.string());
    return folder.ok() ? "no error" : Message(folder.status());
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(ShardedFolderTest, FindsTensorsInTheirShards) {
  EXPECT_EQ(Error(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})"), "no error");
  const absl::StatusOr<SafetensorsFolder> folder = SafetensorsFolder::Open(folder_.string());
  ASSERT_TRUE(folder.ok());
  EXPECT_NE(folder->FindTensor("b"), nullptr);
  EXPECT_EQ(folder->FindTensor("c"), nullptr);
  EXPECT_EQ(folder->tensors().size(), 2u);
}

TEST_F(ShardedFolderTest, RefusesNamesThatLeaveTheFolder) {
  for (const char* shard :
       {"../one.safetensors", "/etc/one.safetensors", "sub/one.safetensors", "", ".safetensors",
        "..", "one.bin", ".hidden.safetensors", "one.safetensors\\u0000"}) {
    EXPECT_THAT(Error(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", shard)),
                HasSubstr("must be a plain file name"))
        << shard;
  }
}

TEST_F(ShardedFolderTest, NamesWhatIsMissing) {
  EXPECT_THAT(Error(R"({"weight_map":{"a":"three.safetensors"}})"), HasSubstr("three.safetensors"));
  EXPECT_THAT(Error(R"({"weight_map":{"a":"one.safetensors","c":"one.safetensors"}})"),
              HasSubstr("tensor 'c' is missing"));
  EXPECT_THAT(Error(R"({"weight_map":{"b":"one.safetensors"}})"), HasSubstr("'b' is missing"));
}

TEST_F(ShardedFolderTest, RefusesDamagedIndices) {
  EXPECT_THAT(Error("{"), HasSubstr("is not JSON"));
  EXPECT_THAT(Error("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(Error("{}"), HasSubstr("weight_map is missing"));
  EXPECT_THAT(Error(R"({"weight_map":[]})"), HasSubstr("weight_map is missing or not an object"));
  EXPECT_THAT(Error(R"({"weight_map":{}})"), HasSubstr("names 0 shards"));
  EXPECT_THAT(Error(R"({"weight_map":{"a":1}})"), HasSubstr("wanted a string"));
  EXPECT_THAT(Error(std::string(100'000, '[')), HasSubstr("nests"));
}

TEST_F(ShardedFolderTest, RefusesATensorThatTheIndexDoesNotName) {
  Write("two.safetensors",
        SafetensorsBytes(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                         R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                         "12345678"));
  EXPECT_THAT(Error(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})"),
              HasSubstr("two.safetensors holds 2 tensors, but the index puts 1 there"));
}

TEST_F(ShardedFolderTest, NamesTheFolderWithoutWeights) {
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directories(folder_);
  const absl::Status status = SafetensorsFolder::Open(folder_.string()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(status), HasSubstr("holds neither model.safetensors nor"));
}

}  // namespace
}  // namespace tokenbutler
