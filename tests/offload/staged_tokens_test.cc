#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/block_places.h"
#include "offload/resident_tokens.h"
#include "tests/offload/staged_sequence.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kAlways = std::numeric_limits<float>::infinity();

std::unique_ptr<ResidentTokens> NewStaged(StagedTiers& tiers, const ResidentOptions& options) {
  auto resident = NewStagedTokens(tiers.tier(), options);
  EXPECT_TRUE(resident.ok()) << resident.status();
  return resident.ok() ? *std::move(resident) : nullptr;
}

// Host blocks 0, 1, ... in an order that is not theirs.
std::vector<BlockId> ShuffledBlocks(int count) {
  std::vector<BlockId> blocks(static_cast<size_t>(count));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(5));
  return blocks;
}

// Sink, a local window of random size, and random tokens between, as policies choose them; within
// `most` tokens.
void Choose(std::mt19937& random, const KvLayout& layout, const ResidentOptions& options,
            int num_tokens, int most, TokenSelection* selection) {
  selection->Reset(layout.num_kv_heads, num_tokens);
  const int widest = options.local_window + options.prediction_interval + layout.block_size;
  for (int h = 0; h < layout.num_kv_heads; ++h) {
    const int local_begin = std::max(0, num_tokens - 1 - static_cast<int>(random() % widest));
    const int sink_end = std::min(options.sink_tokens, local_begin);
    std::vector<int32_t> middle;
    for (int t = sink_end; t < local_begin; ++t) middle.push_back(t);
    std::shuffle(middle.begin(), middle.end(), random);
    const int fixed = sink_end + num_tokens - local_begin;
    const size_t room = static_cast<size_t>(std::max(0, most - fixed));
    middle.resize(std::min(middle.size(), room == 0 ? 0 : random() % (room + 1)));
    std::sort(middle.begin(), middle.end());
    for (int t = 0; t < sink_end; ++t) selection->Add(h, t, kAlways);
    for (const int32_t t : middle) selection->Add(h, t, static_cast<float>(random() % 16));
    for (int t = local_begin; t < num_tokens; ++t) selection->Add(h, t, kAlways);
  }
}

std::vector<int32_t> Chosen(const TokenSelection& selection, int kv_head) {
  const auto tokens = selection.tokens_of(kv_head);
  return {tokens.begin(), tokens.end()};
}

struct Script {
  int seed = 0;
  absl::Duration delays = absl::ZeroDuration();
  bool may_defer = false;
};

// A conversation of random lengths around all edges, with random selections and prefetches. Returns
// what the views showed; everything in it is checked on the way.
std::vector<std::vector<int32_t>> Converse(const Script& script, OffloadCounters* counters) {
  std::mt19937 random(script.seed);
  const int block_size = std::vector<int>{1, 4, 8}[random() % 3];
  const KvLayout layout = NamedRowLayout(block_size, random() % 4 == 0 ? DType::kI8 : DType::kF32);
  const auto edge = [&](int around) {
    return std::max(0, around + static_cast<int>(random() % 3) - 1);
  };
  ResidentOptions options;
  options.sink_tokens = edge(block_size * static_cast<int>(random() % 3));
  options.local_window = edge(block_size * static_cast<int>(random() % 3));
  options.prediction_interval = random() % 2 == 0 ? 1 : 5;
  options.token_budget = options.sink_tokens + options.local_window + block_size +
                         options.prediction_interval + 1 + static_cast<int>(random() % 12);
  options.candidates = random() % 2 == 0 ? 0 : options.token_budget + 9;
  options.selections_kept = 1 + static_cast<int>(random() % 2);

  TransferOptions transfers{.num_workers = 1 + static_cast<int>(random() % 3)};
  if (script.delays > absl::ZeroDuration()) transfers.before_copy = RandomDelays(script.delays);
  const int host_blocks = 200 / block_size;
  StagedTiers tiers(layout, host_blocks, StagedBytes(layout, options) + 1024 * block_size,
                    transfers);
  const HostTier direct_host =
      *HostTier::Create(layout, {.capacity_bytes = host_blocks * StagedTiers::Stride(layout)});
  HandWrittenSequence staged(layout, tiers.host(), ShuffledBlocks(host_blocks),
                             NewStaged(tiers, options));
  HandWrittenSequence direct(layout, direct_host, ShuffledBlocks(host_blocks),
                             NewDirectTokens(layout, direct_host));

  std::vector<std::vector<int32_t>> shown;
  TokenSelection selection, early;
  const int S = options.sink_tokens, N = options.local_window;
  const std::vector<int> edges = {0, 1, S, S + 1, S + N, block_size, 2 * block_size, 40};
  while (staged.num_tokens() < 120 && !testing::Test::HasFailure()) {
    const int prompt = edge(edges[random() % edges.size()]);
    for (int left = prompt; left > 0;) {
      const int chunk = 1 + static_cast<int>(random() % left);
      staged.Prefill(chunk);
      direct.Prefill(chunk);
      left -= chunk;
    }
    for (int steps = 1 + static_cast<int>(random() % 20); steps > 0; --steps) {
      staged.BeginStep();
      direct.BeginStep();
      for (int l = 0; l < layout.num_layers; ++l) {
        const int ahead = l + static_cast<int>(random() % 3);
        if (ahead < layout.num_layers && random() % 3 == 0) {
          Choose(random, layout, options, staged.num_tokens() - 1,
                 std::max(options.token_budget, options.candidates), &early);
          staged.resident().Prefetch(ahead, early);
        }
        staged.WriteLayer(l);
        direct.WriteLayer(l);
        if (random() % 5 == 0) continue;  // a dense layer
        Choose(random, layout, options, staged.num_tokens(), options.token_budget, &selection);
        const ResidentView view = staged.resident().Fetch(l, selection, script.may_defer);
        const ResidentView other = direct.resident().Fetch(l, selection, script.may_defer);
        for (int h = 0; h < layout.num_kv_heads; ++h) {
          const std::vector<int32_t> tokens = TokensOf(layout, view, l, h);
          const std::vector<int32_t> all = TokensOf(layout, other, l, h);
          EXPECT_EQ(all, Chosen(selection, h));
          EXPECT_FALSE(tokens.empty());
          if (script.may_defer) {
            EXPECT_TRUE(std::includes(all.begin(), all.end(), tokens.begin(), tokens.end()));
          } else {
            EXPECT_EQ(tokens, all);
          }
          shown.push_back(tokens);
        }
      }
      staged.resident().EndStep();
      direct.resident().EndStep();
    }
  }
  staged.Prefill(0);  // waits until all rows are in the host tier

  // The recount: what really travelled.
  *counters = staged.resident().counters();
  EXPECT_EQ(counters->host_to_device_bytes,
            tiers.transfers().bytes(TransferDirection::kHostToDevice));
  EXPECT_EQ(counters->device_to_host_bytes,
            staged.num_tokens() * static_cast<int64_t>(layout.token_bytes()))
      << "every row goes to the host tier once";
  EXPECT_EQ(tiers.transfers().num_open(), 0);
  return shown;
}

class StagedTokensRandomTest : public testing::TestWithParam<int> {};

TEST_P(StagedTokensRandomTest, ShowsTheRowsThatDirectShows) {
  OffloadCounters counters;
  Converse({.seed = GetParam()}, &counters);
  EXPECT_EQ(counters.deferred, 0);
}

TEST_P(StagedTokensRandomTest, SlowTransfersChangeNothing) {
  OffloadCounters fast, slow;
  const auto shown = Converse({.seed = GetParam()}, &fast);
  const auto shown_late = Converse({.seed = GetParam(), .delays = absl::Microseconds(100)}, &slow);
  EXPECT_EQ(shown, shown_late);
  EXPECT_EQ(fast.host_to_device_bytes, slow.host_to_device_bytes);
  EXPECT_EQ(fast.hits, slow.hits);
}

TEST_P(StagedTokensRandomTest, WhatIsDeferredDoesNotDependOnTheSpeedOfTransfers) {
  OffloadCounters fast, slow;
  const auto shown = Converse({.seed = GetParam(), .may_defer = true}, &fast);
  const auto shown_late =
      Converse({.seed = GetParam(), .delays = absl::Microseconds(100), .may_defer = true}, &slow);
  EXPECT_EQ(shown, shown_late);
  EXPECT_EQ(fast.deferred, slow.deferred);
}

INSTANTIATE_TEST_SUITE_P(Seeds, StagedTokensRandomTest, testing::Range(0, 40));

// One layout, 40 tokens of prompt, sink 4, window 4: tokens [4, 24) are in no place.
class StagedTokensTest : public testing::Test {
 protected:
  static constexpr int kPrompt = 40;

  void Start(const TransferOptions& transfers = {}) {
    tiers_ =
        std::make_unique<StagedTiers>(layout_, 32, 64 * StagedTiers::Stride(layout_), transfers);
    sequence_ = std::make_unique<HandWrittenSequence>(layout_, tiers_->host(), ShuffledBlocks(16),
                                                      NewStaged(*tiers_, options_));
    sequence_->Prefill(kPrompt);
  }
  void Select(std::vector<int32_t> tokens) {
    selection_.Reset(layout_.num_kv_heads, 40);
    for (int h = 0; h < layout_.num_kv_heads; ++h) {
      for (const int32_t t : tokens) selection_.Add(h, t, 1);
      selection_.Add(h, sequence_->num_tokens() - 1, kAlways);
    }
  }
  // A step with the same tokens, and its own, in every layer; what layer 1, head 0 was shown.
  std::vector<int32_t> Step(std::vector<int32_t> tokens, bool may_defer = false) {
    std::vector<int32_t> shown;
    sequence_->BeginStep();
    for (int l = 0; l < layout_.num_layers; ++l) {
      sequence_->WriteLayer(l);
      Select(tokens);
      const ResidentView view = sequence_->resident().Fetch(l, selection_, may_defer);
      if (l == 1) shown = TokensOf(layout_, view, l, 0);
    }
    sequence_->resident().EndStep();
    return shown;
  }
  const OffloadCounters& counters() { return sequence_->resident().counters(); }

  const KvLayout layout_ = NamedRowLayout(8);
  const ResidentOptions options_ = {.token_budget = 12, .sink_tokens = 4, .local_window = 4};
  std::unique_ptr<StagedTiers> tiers_;
  std::unique_ptr<HandWrittenSequence> sequence_;
  TokenSelection selection_;
};

TEST_F(StagedTokensTest, CountsEveryByteOnce) {
  Start();
  const int64_t token_bytes = static_cast<int64_t>(layout_.token_bytes());
  EXPECT_EQ(counters().device_to_host_bytes, kPrompt * token_bytes)
      << "the prompt's rows, computed";
  Step({0, 10, 11, 20, 39});
  // Sink block, ring blocks (the newest, which is empty, and two before it), three tokens.
  EXPECT_EQ(BlockPlaces::For(layout_, options_).num_ring, 3);
  EXPECT_EQ(counters().host_to_device_bytes, (8 + 2 * 8 + 3) * token_bytes);
  const int64_t lists = layout_.num_layers * layout_.num_kv_heads;
  EXPECT_EQ(counters().lookups, 6 * lists);
  EXPECT_EQ(counters().hits, 3 * lists);
  // The same once more, and one token that is new.
  Step({0, 10, 11, 12, 20, 39});
  EXPECT_EQ(counters().host_to_device_bytes, (8 + 2 * 8 + 4) * token_bytes);
  EXPECT_EQ(counters().lookups, (6 + 7) * lists);
  EXPECT_EQ(counters().hits, (3 + 6) * lists);
  // 40 + 8: a block is complete.
  for (int i = 0; i < 6; ++i) Step({0});
  EXPECT_EQ(counters().device_to_host_bytes, (kPrompt + 8) * token_bytes);
  EXPECT_EQ(counters().host_to_device_bytes, (8 + 2 * 8 + 4) * token_bytes);
  Step({0});
  sequence_->Prefill(3);
  EXPECT_EQ(counters().device_to_host_bytes, (kPrompt + 9 + 3) * token_bytes);
  EXPECT_EQ(counters().prefetch_issued, 0);
}

TEST_F(StagedTokensTest, APrefetchedTokenIsAHitAndItsBytesAreCountedAsSuch) {
  Start();
  sequence_->BeginStep();
  for (int l = 0; l < layout_.num_layers; ++l) sequence_->WriteLayer(l);
  Select({10, 11});
  const int64_t before = counters().host_to_device_bytes;
  sequence_->resident().Prefetch(2, selection_);
  sequence_->resident().Prefetch(2, selection_);  // changes nothing
  const int64_t rows = 2 * layout_.num_kv_heads * static_cast<int64_t>(layout_.token_row_bytes());
  EXPECT_EQ(counters().prefetch_issued, 1);
  EXPECT_EQ(counters().prefetched_bytes, rows);
  const ResidentView view = sequence_->resident().Fetch(2, selection_, /*may_defer=*/true);
  EXPECT_THAT(TokensOf(layout_, view, 2, 1), ElementsAre(10, 11, 40));
  EXPECT_EQ(counters().host_to_device_bytes, before + rows);
  EXPECT_EQ(counters().hits, counters().lookups);
  EXPECT_EQ(counters().deferred, 0);
}

TEST_F(StagedTokensTest, DeferredTokensAreLeftOutOnceAndThereAtTheNextStep) {
  Start();
  EXPECT_THAT(Step({0, 10, 11}, true), ElementsAre(0, 40));
  EXPECT_THAT(Step({0, 10, 11, 13}, true), ElementsAre(0, 10, 11, 41));
  EXPECT_THAT(Step({0, 10, 11, 13}, true), ElementsAre(0, 10, 11, 13, 42));
  EXPECT_EQ(counters().deferred, 3 * layout_.num_layers * layout_.num_kv_heads);
}

TEST_F(StagedTokensTest, AViewIsNeverEmptyEvenWhenItMayDefer) {
  Start();
  sequence_->BeginStep();
  sequence_->WriteLayer(0);
  selection_.Reset(layout_.num_kv_heads, 8);
  for (int h = 0; h < layout_.num_kv_heads; ++h) {
    selection_.Add(h, 10, 1);
    selection_.Add(h, 11, 1);
  }
  const ResidentView view = sequence_->resident().Fetch(0, selection_, /*may_defer=*/true);
  EXPECT_THAT(TokensOf(layout_, view, 0, 0), ElementsAre(10, 11));
  EXPECT_EQ(counters().deferred, 0);
}

TEST_F(StagedTokensTest, ASelectionLargerThanTheSlotsIsReadInPlace) {
  Start();
  const std::vector<int32_t> tokens = {8,  9,  10, 11, 12, 13, 14, 15,
                                       16, 17, 18, 19, 20, 21, 22, 23};
  std::vector<int32_t> all = tokens;
  all.push_back(40);
  EXPECT_EQ(Step(tokens), all);
  const int64_t token_bytes = static_cast<int64_t>(layout_.token_bytes());
  EXPECT_EQ(counters().host_to_device_bytes, (8 + 2 * 8 + 16) * token_bytes);
}

TEST_F(StagedTokensTest, StartsWithNothingResidentAfterAPrefill) {
  Start();
  Step({10, 11});
  const int64_t before = counters().hits;
  sequence_->Prefill(1);
  Step({10, 11});
  EXPECT_EQ(counters().hits - before, layout_.num_layers * layout_.num_kv_heads)
      << "the newest token only";
}

TEST_F(StagedTokensTest, AForkHasNothingResidentAndDoesNotCountThePromptAgain) {
  Start();
  auto fork = sequence_->resident().Fork();
  ASSERT_TRUE(fork.ok()) << fork.status();
  EXPECT_EQ((*fork)->counters().device_to_host_bytes, 0);
  HandWrittenSequence other(layout_, tiers_->host(), ShuffledBlocks(16), *std::move(fork));
  EXPECT_EQ(tiers_->device().used_bytes(), 2 * StagedBytes(layout_, options_));
  other.Prefill(kPrompt);  // the same rows again
  EXPECT_EQ(other.resident().counters().device_to_host_bytes, 0);
  other.Prefill(1);
  EXPECT_EQ(other.resident().counters().device_to_host_bytes,
            static_cast<int64_t>(layout_.token_bytes()));
}

TEST_F(StagedTokensTest, ALateTransferIsWaitedForAndCounted) {
  Start({.link_latency_us = 2000});
  Step({10});
  EXPECT_GT(counters().stall, absl::Milliseconds(3 * 2 - 3));
  EXPECT_GT(counters().transfer, absl::Milliseconds(3 * 2));
  sequence_->BeginStep();
  sequence_->WriteLayer(0);
  Select({12});
  sequence_->resident().Prefetch(0, selection_);
  sequence_->resident().Fetch(0, selection_, false);
  EXPECT_EQ(counters().prefetch_late, 1);
}

TEST_F(StagedTokensTest, RefusesASequenceThatDoesNotFitAndGivesEverythingBack) {
  const int64_t bytes = StagedBytes(layout_, options_);
  StagedTiers tiers(layout_, 32, 2 * bytes + bytes / 2);
  auto first = NewStagedTokens(tiers.tier(), options_);
  auto second = NewStagedTokens(tiers.tier(), options_);
  ASSERT_TRUE(first.ok() && second.ok());
  const auto third = NewStagedTokens(tiers.tier(), options_);
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr(std::to_string(bytes)));
  EXPECT_EQ((*first)->Fork().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(tiers.device().used_bytes(), 2 * bytes) << "a refusal takes nothing";
  *first = nullptr;
  EXPECT_TRUE((*second)->Fork().ok());
  EXPECT_EQ(tiers.device().used_bytes(), bytes);
  *second = nullptr;
  EXPECT_EQ(tiers.device().used_bytes(), 0);
}

TEST_F(StagedTokensTest, TakesTheRoomOfItsForksAtOnceOrNone) {
  const int64_t bytes = StagedBytes(layout_, options_);
  StagedTiers tiers(layout_, 32, 3 * bytes);
  ResidentOptions options = options_;
  options.num_forks = 3;
  const absl::Status status = NewStagedTokens(tiers.tier(), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(fmt::format("4 sequences need 4 times {} bytes of the device tier, {} of "
                                    "{} bytes are free",
                                    bytes, 3 * bytes, 3 * bytes)));
  EXPECT_EQ(tiers.device().used_bytes(), 0);
  options.num_forks = 2;
  auto source = NewStagedTokens(tiers.tier(), options);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(tiers.device().used_bytes(), 3 * bytes);
  {
    auto first = (*source)->Fork();
    auto second = (*source)->Fork();
    EXPECT_TRUE(first.ok() && second.ok());
    EXPECT_EQ((*second)->Fork().status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(tiers.device().used_bytes(), bytes);
  *source = nullptr;
  EXPECT_EQ(tiers.device().used_bytes(), 0);
}

TEST_F(StagedTokensTest, RefusesOptionsThatMakeNoSense) {
  StagedTiers tiers(layout_, 1, 1 << 20);
  for (const ResidentOptions& options :
       {ResidentOptions{.token_budget = 0}, ResidentOptions{.candidates = -1},
        ResidentOptions{.sink_tokens = -1}, ResidentOptions{.local_window = -1},
        ResidentOptions{.prediction_interval = 0}, ResidentOptions{.selections_kept = 0},
        ResidentOptions{.num_forks = -1}}) {
    EXPECT_EQ(NewStagedTokens(tiers.tier(), options).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(StagedTokensTest, DiesCleanlyWithTransfersInFlight) {
  Start({.before_copy = [](TransferDirection) { absl::SleepFor(absl::Milliseconds(2)); }});
  for (int i = 0; i < 7; ++i) Step({0});
  sequence_->BeginStep();
  for (int l = 0; l < layout_.num_layers; ++l) {
    sequence_->WriteLayer(l);
    Select({10 + l, 20});
    sequence_->resident().Prefetch(l, selection_);
  }
  sequence_->resident().EndStep();  // the block of tokens 40 to 47 is complete
  EXPECT_GT(tiers_->transfers().num_open(), layout_.num_layers);
  sequence_->Forget();
  EXPECT_EQ(tiers_->transfers().num_open(), 0);
  EXPECT_EQ(tiers_->device().used_bytes(), 0);
}

// Three sequences step by step, side by side, as in a batch; one ends and another takes its part.
TEST(StagedBatchTest, SequencesShareTheTierAndTheLinkAndNothingElse) {
  const KvLayout layout = NamedRowLayout(4);
  const ResidentOptions options = {.token_budget = 16, .sink_tokens = 3, .local_window = 5};
  StagedTiers tiers(layout, 60, 3 * StagedBytes(layout, options),
                    {.num_workers = 3, .before_copy = RandomDelays(absl::Microseconds(50))});
  const std::vector<BlockId> blocks = ShuffledBlocks(60);
  std::mt19937 random(3);
  std::vector<std::unique_ptr<HandWrittenSequence>> batch(3);
  int num_started = 0;
  TokenSelection selection;
  for (int round = 0; round < 4; ++round) {
    const size_t changed = static_cast<size_t>(round) % 3;
    batch[changed] = nullptr;  // its blocks and its part of the tier go to the next
    for (size_t i = 0; i < batch.size(); ++i) {
      if (batch[i] != nullptr) continue;
      std::vector<BlockId> own(blocks.begin() + static_cast<ptrdiff_t>(20 * i),
                               blocks.begin() + static_cast<ptrdiff_t>(20 * (i + 1)));
      batch[i] = std::make_unique<HandWrittenSequence>(
          layout, tiers.host(), std::move(own), NewStaged(tiers, options), 1000 * ++num_started);
      batch[i]->Prefill(17 + static_cast<int>(i));
    }
    for (int step = 0; step < 13; ++step) {
      for (const auto& sequence : batch) sequence->BeginStep();
      for (int l = 0; l < layout.num_layers; ++l) {
        for (const auto& sequence : batch) {
          sequence->WriteLayer(l);
          Choose(random, layout, options, sequence->num_tokens(), options.token_budget, &selection);
          const ResidentView view = sequence->resident().Fetch(l, selection, false);
          for (int h = 0; h < layout.num_kv_heads; ++h) {
            std::vector<int32_t> named = Chosen(selection, h);
            for (int32_t& token : named) token += sequence->first_name();
            ASSERT_EQ(TokensOf(layout, view, l, h), named);
          }
        }
      }
      for (const auto& sequence : batch) sequence->resident().EndStep();
    }
  }
}

}  // namespace
}  // namespace tokenbutler
