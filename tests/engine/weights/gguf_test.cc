#include "engine/weights/gguf.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/allocation_counter.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/touch_gguf.h"

namespace tokenbutler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// A small file with every kind of value and two tensors.
GgufWriter SmallFile() {
  GgufWriter writer;
  writer.alignment = 8;  // the tightest: padding hides no wrong size
  writer.AddString("general.architecture", "llama");
  writer.AddUint32("general.alignment", 8);
  writer.AddUint32("n.u32", 7);
  writer.AddNumber("n.u64", GgufType::kUint64, uint64_t{1} << 63);
  writer.AddNumber("n.i8", GgufType::kInt8, int8_t{-5});
  writer.AddNumber("n.f64", GgufType::kFloat64, 0.5);
  writer.AddFloat("n.f32", 1.5f);
  writer.AddBool("flag", true);
  writer.AddStrings("words", {"a", "", "ccc"});
  writer.AddNumbers<float>("floats", GgufType::kFloat32, {1.0f, 2.0f});
  writer.AddNumbers<uint16_t>("shorts", GgufType::kUint16, {1, 65535});
  writer.AddF32Tensor("a.weight", {2, 3}, {1, 2, 3, 4, 5, 6});
  writer.AddTensor("b.weight", GgmlType::kQ8_0, {1, 32}, std::string(34, '\1'));
  return writer;
}

TEST(GgufTest, ReadsWhatWasWritten) {
  const std::string bytes = SmallFile().Finish();
  const absl::StatusOr<GgufFile> file = GgufFile::Parse(AsBytes(bytes));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->alignment(), 8u);
  EXPECT_EQ(*file->Get<std::string_view>("general.architecture"), "llama");
  EXPECT_EQ(*file->Get<int64_t>("n.u32"), 7);
  EXPECT_EQ(*file->Get<int64_t>("n.i8"), -5);
  EXPECT_EQ(*file->Get<double>("n.f64"), 0.5);
  EXPECT_EQ(*file->Get<double>("n.f32"), 1.5);
  EXPECT_EQ(*file->Get<bool>("flag"), true);
  EXPECT_THAT(*file->Get<std::vector<std::string_view>>("words"), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(*file->Get<std::vector<float>>("floats"), ElementsAre(1.0f, 2.0f));
  EXPECT_THAT(*file->Get<std::vector<int64_t>>("shorts"), ElementsAre(1, 65535));
  ASSERT_EQ(file->tensors().size(), 2u);
  const GgufTensor* a = file->FindTensor("a.weight");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->rank, 2);
  EXPECT_EQ(a->shape[0], 2);
  EXPECT_EQ(a->shape[1], 3);
  float last = 0;
  std::memcpy(&last, a->data.data() + 20, sizeof(last));
  EXPECT_EQ(last, 6.0f);
  EXPECT_EQ(file->FindTensor("b.weight")->data.size(), 34u);
  EXPECT_EQ(file->FindTensor("c.weight"), nullptr);
}

TEST(GgufTest, Version2IsTheSame) {
  GgufWriter writer = SmallFile();
  writer.version = 2;
  EXPECT_TRUE(GgufFile::Parse(AsBytes(writer.Finish())).ok());
}

TEST(GgufTest, LookupsNameKeyFoundTypeAndWantedType) {
  const std::string bytes = SmallFile().Finish();
  const absl::StatusOr<GgufFile> file = GgufFile::Parse(AsBytes(bytes));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(Message(file->Get<int64_t>("n.f32").status()),
            "metadata key 'n.f32' is of type float32, wanted an integer");
  EXPECT_EQ(Message(file->Get<int64_t>("shorts").status()),
            "metadata key 'shorts' is an array of uint16, wanted an integer");
  EXPECT_EQ(Message(file->Get<std::vector<float>>("words").status()),
            "metadata key 'words' is an array of string, wanted an array of float32");
  EXPECT_EQ(file->Get<bool>("nothing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(file->Get<bool>("nothing").status()), HasSubstr("'nothing'"));
  EXPECT_THAT(Message(file->Get<int64_t>("n.u64").status()), HasSubstr("must be at most"));
  EXPECT_FALSE(file->Find<bool>("nothing")->has_value());
}

// The file `writer` makes is refused with a message that has `what` in it.
void ExpectRefused(GgufWriter writer, const std::string& what) {
  const std::string bytes = writer.Finish();
  const absl::StatusOr<GgufFile> file = GgufFile::Parse(AsBytes(bytes));
  ASSERT_FALSE(file.ok()) << "wanted: " << what;
  EXPECT_THAT(Message(file.status()), HasSubstr(what));
}

TEST(GgufTest, RefusesDuplicates) {
  GgufWriter keys = SmallFile();
  keys.AddUint32("n.u32", 8);
  ExpectRefused(keys, "metadata key 'n.u32' stands twice");
  GgufWriter names = SmallFile();
  names.AddF32Tensor("a.weight", {1}, {1});
  ExpectRefused(names, "tensor name 'a.weight' stands twice");
}

TEST(GgufTest, RefusesBadAlignments) {
  for (const uint32_t alignment : {0u, 1u, 4u, 24u, 33u, 1u << 21, 0xffffffffu}) {
    GgufWriter writer;
    writer.AddUint32("general.alignment", alignment);
    ExpectRefused(writer, fmt::format("general.alignment is {}", alignment));
  }
  GgufWriter text;
  text.AddString("general.alignment", "32");
  ExpectRefused(text, "'general.alignment' is of type string, wanted an integer");
}

TEST(GgufTest, RefusesNestedArrays) {
  GgufWriter writer;
  writer.AddNumbers<uint32_t>("nested", GgufType::kArray, {1, 2, 3, 4});
  ExpectRefused(writer, "arrays of arrays");
}

TEST(GgufTest, RefusesRowsThatAreNotWholeBlocks) {
  GgufWriter writer;
  writer.AddTensor("t", GgmlType::kQ8_0, {2, 31}, std::string(68, '\0'));
  ExpectRefused(writer, "dimension 0 is 31, must be a multiple of 32 for type Q8_0");
}

TEST(GgufTest, NamesTypesThatItDoesNotRead) {
  GgufWriter writer;
  writer.AddTensor("t", static_cast<GgmlType>(23), {256}, std::string(136, '\0'));
  ExpectRefused(writer, "type is 23 (IQ4_XS), which is not read");
}

TEST(GgufTest, RefusesBytesBehindTheTensors) {
  EXPECT_THAT(
      Message(GgufFile::Parse(AsBytes(SmallFile().Finish() + std::string(64, 'x'))).status()),
      HasSubstr("tensor_count"));
}

// ---- Structured damage: every number of the header, with values that liars write.
// ----------------

constexpr size_t kMaxAllocation = size_t{1} << 20;

// What `field` may be damaged to: the extremes, neighbours of the true value, powers of two.
std::vector<uint64_t> BadValues(uint64_t good, size_t bytes) {
  std::vector<uint64_t> values = {0, 1, good - 1, good + 1, good * 2, ~uint64_t{0}};
  for (const int shift : {7, 8, 15, 16, 20, 30, 31, 32, 33, 40, 47, 48, 60, 61, 62, 63}) {
    for (const int64_t step : {-1, 0, 1}) {
      values.push_back((uint64_t{1} << shift) + static_cast<uint64_t>(step));
    }
  }
  if (bytes < 8) {
    const uint64_t mask = (uint64_t{1} << (8 * bytes)) - 1;
    for (uint64_t& value : values) value &= mask;
  }
  std::erase(values, good);
  return values;
}

// Values that leave the file well-formed: another version, or another type of the same size.
bool MayParse(const GgufWriter::Field& field) {
  return field.label == "value" || field.label == "value type" || field.label == "type" ||
         field.label == "version" || field.label == "array element type" || field.label == "bool";
}

TEST(GgufDamageTest, EveryHeaderFieldIsChecked) {
  GgufWriter writer = SmallFile();
  const std::string good = writer.Finish();
  int num_refused = 0;
  for (const GgufWriter::Field& field : writer.fields()) {
    uint64_t original = 0;
    std::memcpy(&original, good.data() + field.offset, field.bytes);
    for (const uint64_t value : BadValues(original, field.bytes)) {
      std::string bad = good;
      std::memcpy(bad.data() + field.offset, &value, field.bytes);
      SCOPED_TRACE(
          fmt::format("{} of '{}' is {} instead of {}", field.label, field.of, value, original));
      const AllocationCounter counter;
      const absl::StatusOr<GgufFile> file = GgufFile::Parse(AsBytes(bad));
      ASSERT_LT(counter.total_bytes(), kMaxAllocation);
      if (file.ok()) {
        EXPECT_TRUE(MayParse(field));
        TouchEverything(*file);
        continue;
      }
      ++num_refused;
      EXPECT_NE(Message(file.status()), "");
      // A huge number must be refused where it stands, by its own name.
      const bool is_count = field.label != "value" && field.label != "bool";
      if (is_count && (value >> 31) != 0) {
        EXPECT_THAT(Message(file.status()), HasSubstr(field.label));
        if (!field.of.empty() && field.label != "key length" && field.label != "name length") {
          EXPECT_THAT(Message(file.status()), HasSubstr("'" + field.of + "'"));
        }
      }
    }
  }
  EXPECT_GT(num_refused, 2000);
}

TEST(GgufDamageTest, EveryTruncationIsAnError) {
  GgufWriter writer = SmallFile();
  const std::string good = writer.Finish();
  for (size_t length = 0; length < good.size(); ++length) {
    // A heap block of exactly this size, so that the sanitizer sees a read behind it.
    const std::vector<char> cut(good.begin(), good.begin() + static_cast<ptrdiff_t>(length));
    const AllocationCounter counter;
    const absl::StatusOr<GgufFile> file = GgufFile::Parse(AsBytes({cut.data(), cut.size()}));
    ASSERT_LT(counter.total_bytes(), kMaxAllocation);
    ASSERT_FALSE(file.ok()) << length << " of " << good.size() << " bytes";
    EXPECT_NE(Message(file.status()), "");
  }
}

TEST(GgufDamageTest, EveryFlippedBitIsAnErrorOrHarmless) {
  GgufWriter writer = SmallFile();
  const std::string good = writer.Finish();
  for (size_t bit = 0; bit < 8 * writer.header_bytes(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const AllocationCounter counter;
    const absl::StatusOr<GgufFile> file = GgufFile::Parse(AsBytes(bad));
    ASSERT_LT(counter.total_bytes(), kMaxAllocation) << "bit " << bit;
    if (file.ok()) TouchEverything(*file);
  }
}

TEST(GgufDamageTest, FilesThatAskForTerabytesAreRefusedAtOnce) {
  GgufWriter writer;
  writer.AddTensor("huge", GgmlType::kF32, {uint64_t{1} << 20, uint64_t{1} << 20}, "1234");
  const std::string bytes = writer.Finish();
  const AllocationCounter counter;
  const absl::StatusOr<GgufFile> file = GgufFile::Parse(AsBytes(bytes));
  EXPECT_LT(counter.total_bytes(), size_t{1} << 14);
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(Message(file.status()),
              HasSubstr("tensor 0 'huge': the dimensions make 1099511627776"));
}

}  // namespace
}  // namespace tokenbutler
