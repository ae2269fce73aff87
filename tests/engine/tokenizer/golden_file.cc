#include "tests/engine/tokenizer/golden_file.h"

#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

namespace tokenbutler {
namespace {

class VarintReader {
 public:
  explicit VarintReader(std::string_view bytes) : bytes_(bytes) {}

  // Sets `failed` at the end of the file.
  uint32_t Number() {
    uint32_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
      if (position_ >= bytes_.size()) break;
      const auto byte = static_cast<uint8_t>(bytes_[position_++]);
      value |= static_cast<uint32_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    failed_ = true;
    return 0;
  }

  std::string Text() {
    const uint32_t length = Number();
    if (length > bytes_.size() - position_) {
      failed_ = true;
      return {};
    }
    std::string text(bytes_.substr(position_, length));
    position_ += length;
    return text;
  }

  std::vector<int32_t> Ids(uint32_t count) {
    std::vector<int32_t> ids;
    for (uint32_t i = 0; i < count && !failed_; ++i) ids.push_back(static_cast<int32_t>(Number()));
    return ids;
  }

  bool failed() const { return failed_; }
  bool at_end() const { return position_ == bytes_.size(); }

 private:
  std::string_view bytes_;
  size_t position_ = 0;
  bool failed_ = false;
};

}  // namespace

std::string TokenizerDataPath(const std::string& file) {
  return std::string(TOKENBUTLER_TEST_DATA) + "/tokenizers/" + file;
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFoundError("{} cannot be read", path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

absl::StatusOr<std::vector<std::string>> ReadCorpus() {
  const absl::StatusOr<std::string> bytes = ReadWholeFile(TokenizerDataPath("corpus.bin"));
  if (!bytes.ok()) return bytes.status();
  VarintReader reader(*bytes);
  const uint32_t count = reader.Number();
  std::vector<std::string> texts;
  for (uint32_t i = 0; i < count && !reader.failed(); ++i) texts.push_back(reader.Text());
  if (reader.failed() || !reader.at_end()) return DataLossError("corpus.bin is damaged");
  return texts;
}

absl::StatusOr<GoldenFile> ReadGoldenFile(const std::string& name) {
  const absl::StatusOr<std::string> bytes = ReadWholeFile(TokenizerDataPath(name + ".ids"));
  if (!bytes.ok()) return bytes.status();
  ASSIGN_OR_RETURN(const std::vector<std::string> corpus, ReadCorpus());
  VarintReader reader(*bytes);
  GoldenFile golden;
  golden.vocab_size = static_cast<int>(reader.Number());
  golden.add_special_tokens = reader.Number() != 0;
  const uint32_t stride = reader.Number();
  for (size_t i = 0; i < corpus.size() && stride > 0 && !reader.failed(); i += stride) {
    GoldenEncoding encoding;
    encoding.corpus_index = static_cast<int>(i);
    encoding.literal = reader.Ids(reader.Number());
    const uint32_t parsed = reader.Number();
    encoding.parsed = parsed == 0 ? encoding.literal : reader.Ids(parsed - 1);
    golden.encodings.push_back(std::move(encoding));
  }
  const uint32_t num_decodings = reader.Number();
  for (uint32_t i = 0; i < num_decodings && !reader.failed(); ++i) {
    GoldenDecoding decoding;
    decoding.ids = reader.Ids(reader.Number());
    decoding.text = reader.Text();
    decoding.text_without_special = reader.Text();
    golden.decodings.push_back(std::move(decoding));
  }
  if (reader.failed() || !reader.at_end()) return DataLossError("{}.ids is damaged", name);
  return golden;
}

}  // namespace tokenbutler
