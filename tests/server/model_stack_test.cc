#include "server/model_stack.h"

#include <malloc.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/tiny_predictor_file.h"
#include "tests/testing/temporary_folder.h"
#include "tests/testing/tiny_model.h"

namespace tokenbutler {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// What DefaultKvCapacityBytes leaves to others.
constexpr int64_t kReserve = 1024 * kMiB;

class ModelStackTest : public testing::Test {
 protected:
  void SetUp() override {
    WriteTinyModel(folder_.path() / "tiny");
    config_.model_path = (folder_.path() / "tiny").string();
    config_.num_threads = 1;
    config_.engine.max_num_seqs = 4096;  // so that memory is the bound
  }

  absl::StatusOr<ModelStack> Build(const MemoryReadings& memory) {
    return BuildModelStack(config_, &clock_, &metrics_, memory);
  }
  // The KV cache that is made by default where `room` bytes are left before loading.
  int64_t DefaultCapacity(int64_t room) {
    malloc_trim(0);  // what the test has freed must not be used again without being counted
    const int64_t limit = ResidentBytes() + kReserve + room;
    const auto stack = Build({.limit_bytes = [limit] { return limit; }});
    EXPECT_TRUE(stack.ok()) << stack.status();
    return stack.ok() ? stack->kv_store->capacity_bytes() : -1;
  }

  TemporaryFolder folder_;
  ServerConfig config_;
  RealClock clock_;
  Metrics metrics_{BuildLabels{}};
};

TEST_F(ModelStackTest, PutsAServableModelTogether) {
  config_.kv_capacity_bytes = 16 * kMiB;
  const auto stack = Build({});
  ASSERT_TRUE(stack.ok()) << stack.status();
  EXPECT_EQ(stack->served->name, "tiny");
  EXPECT_EQ(stack->served->max_model_len, kTinyModelLen);
  EXPECT_EQ(stack->served->engine, stack->engine.get());
  EXPECT_NE(stack->served->chat_template, nullptr);
  EXPECT_LE(stack->kv_store->capacity_bytes(), 16 * kMiB);
}

TEST_F(ModelStackTest, TheKvCacheGetsOfWhatThePredictorLeaves) {
  constexpr int64_t kRoom = 120 * kMiB;
  const int64_t without = DefaultCapacity(kRoom);
  EXPECT_LT(without, kRoom);
  // The most units that a predictor may have, of 32 + 32 floats: 16 MiB.
  constexpr int kUnits = 1 << 16;
  constexpr int64_t kPredictorBytes = int64_t{kUnits} * 64 * 4;
  config_.predictor_files.predictor = (folder_.path() / "predictor.safetensors").string();
  WriteTinyPredictor(config_.predictor_files.predictor, config_.model_path, kUnits);
  const int64_t with = DefaultCapacity(kRoom);
  EXPECT_GT(with, 0);
  EXPECT_LT(with, without - kPredictorBytes / 2);
}

// No memory left is an error that names the flag, not a server that dies later.
TEST_F(ModelStackTest, NoRoomForABlockIsAnErrorThatNamesTheFlag) {
  const auto stack = Build({.limit_bytes = [] { return kReserve; }});
  EXPECT_FALSE(stack.ok());
  EXPECT_THAT(std::string(stack.status().message()), testing::HasSubstr("--kv-capacity"));
}

}  // namespace
}  // namespace tokenbutler
