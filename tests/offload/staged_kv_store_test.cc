#include <string>

#include "gtest/gtest.h"
#include "offload/kv_store.h"
#include "tests/offload/staged_sequence.h"

namespace tokenbutler {
namespace {

TEST(StagedKvStoreTest, MakesStagedTokensWithinItsDeviceCapacity) {
  const KvLayout layout = NamedRowLayout(8);
  const ResidentOptions options = {.token_budget = 12,
                                   .sink_tokens = 4,
                                   .local_window = 4,
                                   .selections_kept = KvStore::StagedOptions().selections_kept};
  const int64_t bytes = StagedBytes(layout, options);
  const auto store = KvStore::Create(layout, {.capacity_bytes = 1 << 20},
                                     KvStore::StagedOptions{.device_capacity_bytes = bytes});
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->device_capacity_bytes(), bytes);
  {
    const auto resident = (*store)->NewResidentTokens(options);
    ASSERT_TRUE(resident.ok()) << resident.status();
    EXPECT_EQ((*store)->device_used_bytes(), bytes);
    EXPECT_EQ((*store)->NewResidentTokens(options).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ((*store)->device_used_bytes(), 0);
}

TEST(StagedKvStoreTest, KeepsAsManySelectionsAsItWasToldTo) {
  const KvLayout layout = NamedRowLayout(8);
  ResidentOptions options = {.token_budget = 16, .sink_tokens = 4, .local_window = 4};
  const auto store = KvStore::Create(
      layout, {.capacity_bytes = 1 << 20},
      KvStore::StagedOptions{.device_capacity_bytes = 1 << 20, .selections_kept = 3});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto resident = (*store)->NewResidentTokens(options);
  ASSERT_TRUE(resident.ok()) << resident.status();
  const int64_t one = StagedBytes(layout, options);
  options.selections_kept = 3;
  EXPECT_EQ((*store)->device_used_bytes(), StagedBytes(layout, options));
  EXPECT_EQ(StagedBytes(layout, options) - one, 32 * static_cast<int64_t>(layout.token_bytes()));
}

TEST(StagedKvStoreTest, RefusesADeviceTierBelowOneBlockAndALinkThatCannotBe) {
  const KvLayout layout = NamedRowLayout(8);
  const HostTier::Options host = {.capacity_bytes = 1 << 20};
  EXPECT_EQ(KvStore::Create(layout, host, KvStore::StagedOptions{.device_capacity_bytes = 10})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KvStore::Create(layout, host,
                            KvStore::StagedOptions{.device_capacity_bytes = 1 << 20,
                                                   .transfers = {.link_gbps = -1}})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tokenbutler
