#include "engine/predictor/predictor_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "engine/predictor/predictor_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/predictor/tiny_predictor.h"

namespace tokenbutler {
namespace {

using ::testing::HasSubstr;

constexpr char kDigest[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

ModelFingerprint TinyModel() {
  ModelConfig config;
  config.architecture = "llama";
  config.num_layers = 5;
  config.hidden_size = 32;
  config.intermediate_size = 64;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.max_position = 128;
  return FingerprintOf(config, *Rope::Create(config.rope, config.head_dim, config.max_position));
}

Predictor TinyPredictor(PredictorKind kind) {
  Predictor predictor = RandomPredictor(kind, TinyModel());
  predictor.model_sha256 = {kDigest, std::string(64, '0')};
  return predictor;
}

absl::StatusOr<Predictor> Parse(const std::string& bytes) {
  return ParsePredictor({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

std::string ParseError(const std::string& bytes) {
  return std::string(Parse(bytes).status().message());
}

std::string BytesOf(const Predictor& predictor) {
  absl::StatusOr<std::string> bytes = PredictorFileBytes(predictor, DType::kF32);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.value_or("");
}

void ExpectSame(const Predictor& a, const Predictor& b) {
  EXPECT_EQ(ToPredictorFields(a), ToPredictorFields(b));
  EXPECT_EQ(a.key_projection, b.key_projection);
  EXPECT_EQ(a.early_projection, b.early_projection);
  EXPECT_EQ(a.late_projection, b.late_projection);
  EXPECT_EQ(a.correction_down.bytes, b.correction_down.bytes);
  EXPECT_EQ(a.correction_up.bytes, b.correction_up.bytes);
  EXPECT_EQ(a.correction_up.dtype, b.correction_up.dtype);
  ASSERT_EQ(a.producers.size(), b.producers.size());
  for (size_t i = 0; i < a.producers.size(); ++i) {
    EXPECT_EQ(a.producers[i].norm_weight, b.producers[i].norm_weight);
    EXPECT_EQ(a.producers[i].norm_bias, b.producers[i].norm_bias);
    EXPECT_EQ(a.producers[i].input.bytes, b.producers[i].input.bytes);
    EXPECT_EQ(a.producers[i].output.bytes, b.producers[i].output.bytes);
    EXPECT_EQ(a.producers[i].output.dtype, b.producers[i].output.dtype);
  }
}

// `text` with the first `from` replaced by `to`, which is as long: offsets stay right.
std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(from.size(), to.size()) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// A file with the first `from` of its header replaced by `to`, of any length.
std::string WithHeader(const std::string& bytes, const std::string& from, const std::string& to) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  std::string header = bytes.substr(sizeof(length), length);
  const size_t at = header.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) header.replace(at, from.size(), to);
  const std::string data = bytes.substr(sizeof(length) + length);
  length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

class PredictorKindTest : public testing::TestWithParam<PredictorKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, PredictorKindTest,
                         testing::Values(PredictorKind::kTokenButler, PredictorKind::kLookahead,
                                         PredictorKind::kPca),
                         [](const auto& kind) {
                           return std::string(PredictorKindName(kind.param));
                         });

TEST_P(PredictorKindTest, ComesBackAsWritten) {
  Predictor predictor = TinyPredictor(GetParam());
  for (const ScorePooling pooling : {ScorePooling::kMaxLogit, ScorePooling::kMaxLse,
                                     ScorePooling::kMaxSoftmax, ScorePooling::kMeanSoftmax}) {
    predictor.pooling = pooling;
    absl::StatusOr<Predictor> read = Parse(BytesOf(predictor));
    ASSERT_TRUE(read.ok()) << read.status();
    ExpectSame(*read, predictor);
    EXPECT_EQ(read->model_sha256, predictor.model_sha256);
    EXPECT_EQ(DifferenceFromModel(read->fingerprint, TinyModel()), "");
  }
}

TEST_P(PredictorKindTest, EveryTruncationIsAnError) {
  const std::string bytes = BytesOf(TinyPredictor(GetParam()));
  for (size_t size = 0; size < bytes.size(); size += size < 3000 ? 1 : 97) {
    EXPECT_FALSE(Parse(bytes.substr(0, size)).ok()) << size;
  }
}

TEST_P(PredictorKindTest, EveryMissingFieldIsNamed) {
  const std::string bytes = BytesOf(TinyPredictor(GetParam()));
  for (const auto& [key, value] : ToPredictorFields(TinyPredictor(GetParam()))) {
    const std::string quoted = "\"" + key + "\":";
    std::string other = quoted;
    other[1] = 'X';
    EXPECT_THAT(ParseError(Replaced(bytes, quoted, other)),
                HasSubstr("metadata: " + key + " is missing"));
  }
}

TEST_P(PredictorKindTest, EveryMissingTensorIsNamed) {
  std::vector<std::string> names = {"key_projection"};
  if (GetParam() != PredictorKind::kPca) names.emplace_back("late_projection");
  if (GetParam() == PredictorKind::kLookahead) {
    names.insert(names.end(), {"query_correction.down", "query_correction.up"});
  }
  if (GetParam() == PredictorKind::kTokenButler) {
    for (const char* part : {"norm.weight", "norm.bias", "input.weight", "output.weight"}) {
      names.push_back(std::string("producers.1.") + part);
    }
  }
  const std::string bytes = BytesOf(TinyPredictor(GetParam()));
  for (const std::string& name : names) {
    std::string other = "\"" + name + "\"";
    other[1] = 'X';
    EXPECT_THAT(ParseError(Replaced(bytes, "\"" + name + "\"", other)),
                HasSubstr("'" + name + "' ["));
  }
}

TEST(PredictorFileTest, DamagedFieldsAreNamed) {
  const std::string bytes = BytesOf(TinyPredictor(PredictorKind::kTokenButler));
  const struct {
    const char *from, *to, *message;
  } damages[] = {
      {"tokenbutler-predictor", "tokenbutler-predictoR", "format is"},
      {"\"format_version\":\"1\"", "\"format_version\":\"2\"", "format_version is 2"},
      {"\"kind\":\"tokenbutler\"", "\"kind\":\"tokenbutleR\"", "kind is"},
      {"\"kind\":\"tokenbutler\"", "\"kind\":\"lookahead\"  ", "lookahead_point is missing"},
      {"\"pooling\":\"max_softmax\"", "\"pooling\":\"Max_softmax\"", "pooling is"},
      {"\"projected_dim\":\"8\"", "\"projected_dim\":\"7\"", "multiple of 4"},
      {"\"projected_dim\":\"8\"", "\"projected_dim\":\"4\"", "'key_projection' has shape"},
      {"\"projected_dim\":\"8\"", "\"projected_dim\":\"-\"", "projected_dim is \"-\""},
      {"\"hidden_dim\":\"24\"", "\"hidden_dim\":\"-1\"", "hidden_dim is -1"},
      {"\"hidden_dim\":\"24\"", "\"hidden_dim\":\"25\"", "producers.0.input.weight"},
      {"\"layers_per_predictor\":\"2\"", "\"layers_per_predictor\":\"9\"", "in [1, 5]"},
      {"\"layers_per_predictor\":\"2\"", "\"layers_per_predictor\":\"1\"", "output.weight"},
      {"\"input\":\"before_norm\"", "\"input\":\"before_nurm\"", "input is"},
      {"\"late_projections\":\"true\"", "\"late_projections\":\"trUe\"", "late_projections is"},
      {"\"num_layers\":\"5\"", "\"num_layers\":\"0\"", "num_layers is 0"},
      {"\"num_kv_heads\":\"2\"", "\"num_kv_heads\":\"3\"", "times num_kv_heads, 3"},
      {"\"head_dim\":\"8\"", "\"head_dim\":\"6\"", "rope_inverse_frequencies has 4"},
      {"\"hidden_size\":\"32\"", "\"hidden_size\":\"33\"", "producers.0.norm.weight"},
      {"\"qkv_bias\":\"false\"", "\"qkv_bias\":\"fals \"", "qkv_bias is"},
      {"\"rms_norm_eps\":\"1e-05\"", "\"rms_norm_eps\":\"1e-0x\"", "rms_norm_eps is"},
      {"\"rope_attention_factor\":\"1\"", "\"rope_attention_factor\":\"x\"", "rope_attention"},
      {"\"rope_inverse_frequencies\":\"1,", "\"rope_inverse_frequencies\":\"a,", "rope_inverse"},
      {"ba7816bf", "BA7816BF", "model_sha256 is"},
      {"\"F32\"", "\"I32\"", "has dtype I32"},
  };
  for (const auto& damage : damages) {
    EXPECT_THAT(ParseError(Replaced(bytes, damage.from, damage.to)), HasSubstr(damage.message))
        << damage.to;
  }
}

TEST(PredictorFileTest, DamagedFieldsOfLookaheadFilesAreNamed) {
  const std::string bytes = BytesOf(TinyPredictor(PredictorKind::kLookahead));
  const struct {
    const char *from, *to, *message;
  } damages[] = {
      {"\"lookahead_point\":\"input\"", "\"lookahead_point\":\"imput\"", "lookahead_point is"},
      {"\"correction_rank\":\"4\"", "\"correction_rank\":\"-\"", "correction_rank is \"-\""},
      {"\"correction_rank\":\"4\"", "\"correction_rank\":\"5\"",
       "'query_correction.down' has shape"},
      {"\"correction_rank\":\"4\"", "\"correction_rank\":\"0\"", "does not belong"},
      {"\"correction_rank\":\"4\"", "\"correction_rank\":\"400\"", "in [0, 256]"},
      {"\"projected_dim\":\"8\"", "\"projected_dim\":\"0\"", "late_projections is \"true\""},
      {"\"kind\":\"lookahead\"", "\"kind\":\"pca\"", "does not belong"},
  };
  for (const auto& damage : damages) {
    EXPECT_THAT(ParseError(WithHeader(bytes, damage.from, damage.to)), HasSubstr(damage.message))
        << damage.to;
  }
}

TEST(PredictorFileTest, TensorsThatDoNotBelongAreNamed) {
  const std::string bytes = BytesOf(TinyPredictor(PredictorKind::kLookahead));
  EXPECT_THAT(ParseError(Replaced(bytes, "\"lookahead\"", "\"pca\"      ")),
              HasSubstr("'early_projection' does not belong"));
}

TEST(PredictorFileTest, NumbersThatAreNotFiniteAreNamed) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Predictor predictor = TinyPredictor(PredictorKind::kTokenButler);
    predictor.late_projection[17] = bad;
    EXPECT_THAT(ParseError(BytesOf(predictor)), HasSubstr("'late_projection': element 17"));
    predictor = TinyPredictor(PredictorKind::kTokenButler);
    std::copy_n(reinterpret_cast<const std::byte*>(&bad), 4,
                predictor.producers[1].output.bytes.data() + 4 * 5);
    EXPECT_THAT(ParseError(BytesOf(predictor)),
                HasSubstr("'producers.1.output.weight': element 5"));
    predictor = TinyPredictor(PredictorKind::kLookahead);
    std::copy_n(reinterpret_cast<const std::byte*>(&bad), 4,
                predictor.correction_up.bytes.data() + 4 * 9);
    EXPECT_THAT(ParseError(BytesOf(predictor)), HasSubstr("'query_correction.up': element 9"));
  }
}

TEST_P(PredictorKindTest, EveryFlippedByteIsAnErrorOrAPredictor) {
  const std::string bytes = BytesOf(TinyPredictor(GetParam()));
  for (size_t at = 0; at < std::min<size_t>(bytes.size(), 3500); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x15);
    const absl::StatusOr<Predictor> read = Parse(damaged);
    if (read.ok()) {
      EXPECT_TRUE(read->Validate().ok()) << at;
    }
  }
}

TEST(PredictorFileTest, LowBitKeysAloneNeedACorrectionAndNothingElse) {
  Predictor predictor = RandomBitsPredictor(TinyModel());
  predictor.lookahead_point = LayerPoint::kAfterAttention;
  const std::string bytes = BytesOf(predictor);
  absl::StatusOr<Predictor> read = Parse(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectSame(*read, predictor);
  EXPECT_FALSE(read->has_projections());
  EXPECT_EQ(read->lookahead_point, LayerPoint::kAfterAttention);
  const std::string none = "\"projected_dim\":\"0\"";
  EXPECT_THAT(ParseError(WithHeader(bytes, none, "\"projected_dim\":\"8\"")),
              HasSubstr("'key_projection' [5, 2, 8, 8] is missing"));
  EXPECT_THAT(
      ParseError(WithHeader(bytes, "\"correction_rank\":\"4\"", "\"correction_rank\":\"0\"")),
      HasSubstr("projected_dim is 0, must be in [4, 128] unless"));
  EXPECT_THAT(ParseError(WithHeader(BytesOf(TinyPredictor(PredictorKind::kPca)),
                                    "\"projected_dim\":\"8\"", none)),
              HasSubstr("projected_dim is 0, must be in [4, 128] unless"));
  predictor.key_projection = RandomValues(8, 1, 1.0f);
  EXPECT_THAT(std::string(predictor.Validate().message()),
              HasSubstr("key_projection has 8 elements, must have 0"));
}

TEST(PredictorFileTest, WritesOnlyWhatIsValid) {
  Predictor predictor = TinyPredictor(PredictorKind::kTokenButler);
  predictor.producers.pop_back();
  EXPECT_THAT(std::string(PredictorFileBytes(predictor).status().message()),
              HasSubstr("producers has 1 elements, must have 2"));
  predictor = TinyPredictor(PredictorKind::kLookahead);
  EXPECT_THAT(
      std::string(PredictorFileBytes(predictor, DType::kF32, {{"kind", "x"}}).status().message()),
      HasSubstr("kind is the format's own"));
  EXPECT_FALSE(PredictorFileBytes(predictor, DType::kF32, {{"note", "\xff"}}).ok());
}

TEST(PredictorFileTest, WritesAFileWithBf16Projections) {
  const std::string path = testing::TempDir() + "/predictor_file_test.safetensors";
  const Predictor predictor = TinyPredictor(PredictorKind::kLookahead);
  ASSERT_TRUE(WritePredictor(path, predictor, DType::kBF16, {{"seed", "7"}}).ok());
  absl::StatusOr<Predictor> read = ReadPredictor(path);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->key_projection.size(), predictor.key_projection.size());
  for (size_t i = 0; i < read->key_projection.size(); ++i) {
    EXPECT_EQ(read->key_projection[i], ToFloat(ToBF16(predictor.key_projection[i])));
  }
  std::filesystem::remove(path);
  EXPECT_EQ(ReadPredictor(path).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(WritePredictor("/nowhere/x", predictor).message()),
              HasSubstr("/nowhere/x cannot be written: No such file"));
}

TEST(PredictorFitTest, KnownFilesFitAndOthersOnlyWhenAllowed) {
  const Predictor predictor = TinyPredictor(PredictorKind::kLookahead);
  const auto digest = [](std::string text) {
    return [text]() -> absl::StatusOr<std::string> { return text; };
  };
  EXPECT_TRUE(CheckPredictorFits(predictor, TinyModel(), digest(kDigest), false).ok());
  const absl::Status other =
      CheckPredictorFits(predictor, TinyModel(), digest(std::string(64, 'a')), false);
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), HasSubstr(std::string(64, 'a')));
  EXPECT_THAT(std::string(other.message()), HasSubstr("--predictor-unchecked"));
  EXPECT_TRUE(CheckPredictorFits(predictor, TinyModel(), digest(std::string(64, 'a')), true).ok());
  const auto broken = []() -> absl::StatusOr<std::string> { return UnavailableError("no disk"); };
  EXPECT_EQ(CheckPredictorFits(predictor, TinyModel(), broken, false).code(),
            absl::StatusCode::kUnavailable);
}

TEST(PredictorFitTest, AnotherArchitectureNeverFits) {
  const std::vector<std::pair<std::string, std::function<void(ModelFingerprint&)>>> changes = {
      {"architecture is llama, the model's is qwen2",
       [](ModelFingerprint& f) { f.architecture = "qwen2"; }},
      {"num_layers is 5, the model's is 6", [](ModelFingerprint& f) { f.num_layers = 6; }},
      {"hidden_size", [](ModelFingerprint& f) { f.hidden_size = 40; }},
      {"intermediate_size", [](ModelFingerprint& f) { f.intermediate_size = 40; }},
      {"num_heads", [](ModelFingerprint& f) { f.num_heads = 8; }},
      {"num_kv_heads", [](ModelFingerprint& f) { f.num_kv_heads = 4; }},
      {"head_dim", [](ModelFingerprint& f) { f.head_dim = 16; }},
      {"qkv_bias is false, the model's is true", [](ModelFingerprint& f) { f.qkv_bias = true; }},
      {"rms_norm_eps", [](ModelFingerprint& f) { f.rms_norm_eps = 1e-6f; }},
      {"rope_attention_factor", [](ModelFingerprint& f) { f.rope_attention_factor = 1.1f; }},
      {"rope_inverse_frequencies[2]",
       [](ModelFingerprint& f) { f.rope_inverse_frequencies[2] *= 1.01f; }},
      {"RoPE frequencies", [](ModelFingerprint& f) { f.rope_inverse_frequencies.pop_back(); }},
  };
  const Predictor predictor = TinyPredictor(PredictorKind::kLookahead);
  for (const auto& [message, change] : changes) {
    ModelFingerprint model = TinyModel();
    change(model);
    const absl::Status status = CheckPredictorFits(
        predictor, model, [] { return absl::StatusOr<std::string>(kDigest); }, true);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  // As another file format rounds it.
  ModelFingerprint model = TinyModel();
  model.rope_inverse_frequencies[1] *= 1.0001f;
  EXPECT_EQ(DifferenceFromModel(predictor.fingerprint, model), "");
}

class ModelDigestTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / "model_digest_test";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << text;
    return path;
  }
  static std::string ShaOf(const std::string& text) {
    return Sha256Hex({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  }

  std::filesystem::path folder_;
};

TEST_F(ModelDigestTest, OneFile) {
  EXPECT_EQ(*ModelDigest(Write("m.gguf", "abc")), kDigest);
  Write("model.safetensors", "abc");
  EXPECT_EQ(*ModelDigest(folder_.string()), kDigest);
}

TEST_F(ModelDigestTest, ShardsAsSha256sumPrintsThem) {
  Write("b.safetensors", "abc");
  Write("a.safetensors", "def");
  Write("notes.txt", "ignored");
  EXPECT_EQ(*ModelDigest(folder_.string()),
            ShaOf(ShaOf("def") + "  a.safetensors\n" + ShaOf("abc") + "  b.safetensors\n"));
  const std::string first = Write("x-00001-of-00002.gguf", "abc");
  const std::string second = Write("x-00002-of-00002.gguf", "def");
  EXPECT_EQ(*ModelDigest(first), *ModelDigest(second));
  EXPECT_EQ(*ModelDigest(first), ShaOf(ShaOf("abc") + "  x-00001-of-00002.gguf\n" + ShaOf("def") +
                                       "  x-00002-of-00002.gguf\n"));
}

TEST_F(ModelDigestTest, NothingThere) {
  EXPECT_EQ(ModelDigest(folder_.string()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ModelDigest((folder_ / "x.gguf").string()).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tokenbutler
