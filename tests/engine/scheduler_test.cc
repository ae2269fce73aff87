#include "engine/scheduler.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

using ::testing::ElementsAre;

constexpr int kBlockSize = 4;
constexpr int kChunk = 8;

KvLayout TestLayout() {
  KvLayout layout;
  layout.num_layers = layout.num_kv_heads = layout.head_dim = 1;
  layout.block_size = kBlockSize;
  return layout;
}

EngineConfig TestConfig() {
  EngineConfig config;
  config.max_model_len = 4096;
  config.max_num_seqs = 16;
  config.prefill_chunk_tokens = kChunk;
  return config;
}

// Drives a Scheduler and does to sequences what the committer would, without logits.
class Driver {
 public:
  explicit Driver(EngineConfig config = TestConfig(), int num_blocks = 4096)
      : config_(config), pool_(TestLayout(), num_blocks), scheduler_(config, &pool_) {}

  struct Ask {
    int prompt = 1;
    int max_tokens = 1;
    int priority = 0;
    int n = 1;
    absl::Time deadline = absl::InfiniteFuture();
  };

  RequestState* Add(Ask ask) {
    auto state = std::make_unique<RequestState>();
    state->request.prompt_token_ids.assign(static_cast<size_t>(ask.prompt), 1);
    state->request.max_tokens = ask.max_tokens;
    state->request.priority = ask.priority;
    state->request.sampling.n = ask.n;
    state->request.deadline = ask.deadline;
    const auto footprint = CheckAdmissible(state->request, {.config = config_,
                                                            .layout = TestLayout(),
                                                            .num_blocks = pool_.num_blocks(),
                                                            .vocab_size = 8,
                                                            .eos_ids = {}});
    EXPECT_TRUE(footprint.ok()) << footprint.status();
    state->footprint = *footprint;
    state->ticket = ++num_added_;
    state->arrival = now;
    state->queue_limit = now + config_.max_queue_time;
    state->sequences.resize(static_cast<size_t>(ask.n));
    for (int i = 0; i < ask.n; ++i) {
      state->sequences[i].request = state.get();
      state->sequences[i].index = i;
    }
    scheduler_.Enqueue(state.get());
    requests_.push_back(std::move(state));
    return requests_.back().get();
  }

  const ScheduledStep& Step() {
    scheduler_.Admit();
    const ScheduledStep& step = scheduler_.Schedule(now);
    EXPECT_LE(step.decode.size(), config_.max_num_seqs);
    EXPECT_EQ(step.decode.size(), step.plan.decode.size());
    EXPECT_EQ(step.prefill.size(), step.plan.prefill_chunks.size());
    size_t prefill_tokens = 0;
    for (size_t c = 0; c < step.prefill.size(); ++c) {
      const StepItem& chunk = step.plan.prefill_chunks[c];
      prefill_tokens += chunk.token_ids.size();
      chunks[step.prefill[c]].emplace_back(chunk.start_position, chunk.token_ids.size());
    }
    EXPECT_LE(prefill_tokens, config_.prefill_chunk_tokens);
    for (Sequence* sequence : step.decode) Advance(sequence);
    for (size_t c = 0; c < step.prefill.size(); ++c) {
      Advance(step.prefill[c], static_cast<int>(step.plan.prefill_chunks[c].token_ids.size()));
    }
    for (RequestState* request : over_) scheduler_.Remove(request);
    over_.clear();
    return step;
  }

  Scheduler& scheduler() { return scheduler_; }
  BlockPool& pool() { return pool_; }

  absl::Time now = absl::FromUnixSeconds(1000);
  std::map<const RequestState*, std::vector<std::pair<int, size_t>>> chunks;

 private:
  void Advance(Sequence* sequence) {
    EXPECT_EQ(sequence->block_table.num_tokens,
              sequence->request->prompt_tokens() + sequence->num_new_tokens - 1);
    ++sequence->block_table.num_tokens;
    EXPECT_LE(sequence->block_table.num_tokens,
              static_cast<int>(sequence->block_table.blocks.size()) * kBlockSize);
    Count(sequence);
  }
  void Advance(RequestState* request, int num_tokens) {
    request->num_prefilled += num_tokens;
    if (request->num_prefilled < request->prompt_tokens()) return;
    request->stage = RequestState::Stage::kDecode;
    for (Sequence& sequence : request->sequences) {
      sequence.block_table.num_tokens = request->num_prefilled;
      Count(&sequence);
    }
  }
  void Count(Sequence* sequence) {
    RequestState* request = sequence->request;
    if (++sequence->num_new_tokens < request->footprint.max_new_tokens) return;
    scheduler_.Release(sequence);
    if (std::all_of(request->sequences.begin(), request->sequences.end(),
                    [](const Sequence& s) { return s.finished; })) {
      over_.push_back(request);
    }
  }

  const EngineConfig config_;
  BlockPool pool_;
  Scheduler scheduler_;
  uint64_t num_added_ = 0;
  std::vector<std::unique_ptr<RequestState>> requests_;
  std::vector<RequestState*> over_;
};

bool Served(const ScheduledStep& step, const RequestState* request) {
  return std::find(step.prefill.begin(), step.prefill.end(), request) != step.prefill.end();
}

TEST(SchedulerTest, AnEmptySchedulerHasAnEmptyStep) {
  Driver driver;
  EXPECT_TRUE(driver.Step().empty());
  EXPECT_TRUE(driver.scheduler().idle());
}

TEST(SchedulerTest, DecodersAdvanceInEveryStepBesideALongPrefill) {
  Driver driver;
  for (int i = 0; i < 3; ++i) driver.Add({.prompt = 2, .max_tokens = 200});
  driver.Step();
  RequestState* prefill = driver.Add({.prompt = 100 * kChunk, .max_tokens = 1});
  for (int i = 0; i < 100; ++i) {
    const ScheduledStep& step = driver.Step();
    ASSERT_EQ(step.decode.size(), 3) << "step " << i;
    ASSERT_TRUE(Served(step, prefill)) << "step " << i;
  }
  EXPECT_EQ(prefill->num_prefilled, 100 * kChunk);
}

TEST(SchedulerTest, AShortPromptBehindALongOneIsServedInTheNextStep) {
  Driver driver;
  driver.Add({.prompt = 100 * kChunk});
  driver.Step();
  RequestState* prompt = driver.Add({.prompt = 3});
  EXPECT_TRUE(Served(driver.Step(), prompt));
}

TEST(SchedulerTest, APromptWaitsForAtMostOneChunkOfEachPromptBeforeIt) {
  for (int longs = 1; longs <= 5; ++longs) {
    for (int warm_up = 0; warm_up <= 6; ++warm_up) {
      Driver driver;
      for (int i = 0; i < longs; ++i) driver.Add({.prompt = 100 * kChunk});
      for (int i = 0; i < warm_up; ++i) driver.Step();
      RequestState* prompt = driver.Add({.prompt = kChunk});
      int steps = 1;
      while (!Served(driver.Step(), prompt)) ++steps;
      EXPECT_LE(steps, longs + 1) << longs << " long prompts, " << warm_up << " steps in";
    }
  }
}

TEST(SchedulerTest, ALongPrefillIsNotStarvedByAStreamOfShortOnes) {
  Driver driver;
  RequestState* prefill = driver.Add({.prompt = 50 * kChunk});
  int steps = 0;
  while (prefill->num_prefilled < 50 * kChunk) {
    driver.Add({.prompt = kChunk});
    driver.Step();
    ASSERT_LE(++steps, 50 * 16) << "each of the 16 places must get its turn";
  }
}

TEST(SchedulerTest, ShortPromptsShareAStep) {
  Driver driver;
  RequestState* a = driver.Add({.prompt = 3});
  RequestState* b = driver.Add({.prompt = 2});
  RequestState* c = driver.Add({.prompt = 5});
  RequestState* d = driver.Add({.prompt = 3});
  EXPECT_THAT(driver.Step().prefill, ElementsAre(a, b, d)) << "3 + 2 + 3 tokens fill the chunk";
  EXPECT_THAT(driver.Step().prefill, ElementsAre(c));
}

TEST(SchedulerTest, ChunkBoundariesDependOnThePromptAlone) {
  std::mt19937 random(7);
  Driver driver;
  std::vector<RequestState*> all;
  for (int i = 0; i < 300; ++i) {
    if (random() % 2 == 0) {
      all.push_back(driver.Add({.prompt = 1 + static_cast<int>(random() % 60),
                                .max_tokens = 1 + static_cast<int>(random() % 20),
                                .priority = static_cast<int>(random() % 3)}));
    }
    driver.Step();
  }
  while (!driver.scheduler().idle()) driver.Step();
  for (const RequestState* request : all) {
    std::vector<std::pair<int, size_t>> expected;
    for (int start = 0; start < request->prompt_tokens(); start += kChunk) {
      expected.emplace_back(start, std::min(kChunk, request->prompt_tokens() - start));
    }
    EXPECT_EQ(driver.chunks[request], expected);
  }
}

TEST(SchedulerTest, HigherPriorityIsPrefilledFirst) {
  Driver driver;
  RequestState* low = driver.Add({.prompt = 4 * kChunk, .priority = 0});
  driver.Step();
  RequestState* high = driver.Add({.prompt = 4 * kChunk, .priority = 1});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Served(driver.Step(), high));
  EXPECT_EQ(low->num_prefilled, kChunk);
  EXPECT_TRUE(Served(driver.Step(), low));
}

TEST(SchedulerTest, LowPriorityKeepsItsShareOfThePrefill) {
  Driver driver;
  RequestState* low = driver.Add({.prompt = 10 * kChunk, .priority = -5});
  driver.Step();
  driver.Add({.prompt = 400 * kChunk, .priority = 5});
  driver.Add({.prompt = 400 * kChunk, .priority = 5});
  int steps = 0;
  while (low->num_prefilled < 10 * kChunk) {
    driver.Step();
    ASSERT_LE(++steps, 10 * Scheduler::kFairPrefillInterval);
  }
  EXPECT_GT(steps, 60) << "and not more than its share";
}

TEST(SchedulerTest, TheQueueIsFirstComeFirstServedWithinAPriority) {
  EngineConfig config = TestConfig();
  config.max_num_seqs = 1;
  Driver driver(config);
  RequestState* first = driver.Add({.max_tokens = 2, .priority = 0});
  RequestState* second = driver.Add({.max_tokens = 2, .priority = 0});
  RequestState* urgent = driver.Add({.max_tokens = 2, .priority = 3});
  std::vector<RequestState*> order;
  while (!driver.scheduler().idle()) {
    const ScheduledStep& step = driver.Step();
    order.insert(order.end(), step.prefill.begin(), step.prefill.end());
  }
  EXPECT_THAT(order, ElementsAre(urgent, first, second));
}

TEST(SchedulerTest, AnOldRequestOfLowPriorityGoesBeforeANewOneOfHighPriority) {
  EngineConfig config = TestConfig();
  config.max_num_seqs = 1;
  config.priority_step = absl::Seconds(30);
  Driver driver(config);
  driver.Add({.max_tokens = 3, .priority = 9});
  driver.Step();
  RequestState* old = driver.Add({.max_tokens = 2, .priority = 0});
  driver.now += absl::Seconds(61);
  RequestState* fresh = driver.Add({.max_tokens = 2, .priority = 2});
  RequestState* fresher = driver.Add({.max_tokens = 2, .priority = 3});
  std::vector<RequestState*> order;
  while (!driver.scheduler().idle()) {
    const ScheduledStep& step = driver.Step();
    order.insert(order.end(), step.prefill.begin(), step.prefill.end());
  }
  EXPECT_THAT(order, ElementsAre(fresher, old, fresh))
      << "61 s of waiting outweigh two steps of priority, not three";
}

TEST(SchedulerTest, SmallRequestsPassABigOneThatDoesNotFitButNotForEver) {
  EngineConfig config = TestConfig();
  config.max_overtakes = 5;
  Driver driver(config, /*num_blocks=*/10);
  driver.Add({.prompt = 4 * kBlockSize, .max_tokens = 40 - 4 * kBlockSize - 11});  // 7 blocks
  driver.Step();
  driver.Step();
  ASSERT_EQ(driver.pool().num_free(), 3);
  RequestState* big = driver.Add({.prompt = 9 * kBlockSize});  // 9 blocks
  int small_served = 0;
  for (int i = 0; i < 12; ++i) {
    RequestState* small = driver.Add({.prompt = 1});
    const ScheduledStep& step = driver.Step();
    const bool served = Served(step, small);
    EXPECT_EQ(served, i < 5) << "request " << i;
    small_served += served;
  }
  EXPECT_EQ(small_served, 5);
  EXPECT_EQ(driver.scheduler().num_failed_to_fit(), 1);
  int steps = 0;
  while (big->num_prefilled == 0) {
    driver.Step();
    ASSERT_LE(++steps, 30) << "what runs drains and the big one gets its turn";
  }
  while (!driver.scheduler().idle()) driver.Step();
  EXPECT_EQ(driver.pool().num_free(), 10);
}

TEST(SchedulerTest, ABigRequestThatFitsIsNotHeldBack) {
  Driver driver(TestConfig(), /*num_blocks=*/10);
  RequestState* big = driver.Add({.prompt = 10 * kBlockSize});
  EXPECT_TRUE(Served(driver.Step(), big));
  EXPECT_EQ(driver.pool().num_free(), 0);
}

TEST(SchedulerTest, AdmissionTakesAllThatARequestCanUse) {
  Driver driver;
  driver.Add({.prompt = 5, .max_tokens = 9});  // rows 0..12: the last token is never run
  driver.Step();
  EXPECT_EQ(driver.pool().num_used(), 4);
  while (!driver.scheduler().idle()) {
    driver.Step();
    EXPECT_TRUE(driver.pool().num_used() == 4 || driver.scheduler().idle());
  }
  EXPECT_EQ(driver.pool().num_used(), 0);
}

TEST(SchedulerTest, CompletionsOfOnePromptShareItsFullBlocks) {
  Driver driver;
  RequestState* request = driver.Add({.prompt = 2 * kBlockSize + 1, .max_tokens = 10, .n = 3});
  driver.Step();
  // Rows 0..17 are five blocks, of which two are shared.
  EXPECT_EQ(driver.pool().num_used(), 2 + 3 * 3);
  EXPECT_EQ(driver.pool().num_used(), request->footprint.total_blocks);
  std::set<BlockId> own;
  for (const Sequence& sequence : request->sequences) {
    const std::vector<BlockId>& blocks = sequence.block_table.blocks;
    ASSERT_EQ(blocks.size(), 5);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(blocks[i], request->sequences[0].block_table.blocks[i]);
      EXPECT_EQ(driver.pool().num_owners(blocks[i]), 3);
    }
    own.insert(blocks.begin() + 2, blocks.end());
  }
  EXPECT_EQ(own.size(), 9);
  driver.Step();
  EXPECT_EQ(driver.Step().decode.size(), 3);
  driver.scheduler().Release(&request->sequences[1]);
  EXPECT_EQ(driver.pool().num_used(), 2 + 3 * 2);
  EXPECT_EQ(driver.Step().decode.size(), 2);
  driver.scheduler().Remove(request);
  EXPECT_EQ(driver.pool().num_used(), 0);
  EXPECT_TRUE(driver.Step().empty());
}

TEST(SchedulerTest, NoMoreSequencesThanPlaces) {
  EngineConfig config = TestConfig();
  config.max_num_seqs = 4;
  Driver driver(config);
  for (int i = 0; i < 3; ++i) driver.Add({.prompt = 1, .max_tokens = 10});
  RequestState* pair = driver.Add({.prompt = 1, .max_tokens = 10, .n = 2});
  RequestState* single = driver.Add({.prompt = 1, .max_tokens = 10});
  EXPECT_FALSE(Served(driver.Step(), pair)) << "two completions need two places";
  EXPECT_EQ(driver.scheduler().num_running(), 4) << "one place was free for the next";
  EXPECT_NE(single->num_prefilled, 0);
  EXPECT_EQ(driver.scheduler().num_failed_to_fit(), 0) << "blocks were not what was missing";
  while (!driver.scheduler().idle()) driver.Step();
  EXPECT_NE(pair->num_prefilled, 0);
}

TEST(SchedulerTest, CollectsWhatExpiredInTheQueueAndWhileRunning) {
  EngineConfig config = TestConfig();
  config.max_num_seqs = 1;
  config.max_queue_time = absl::Seconds(100);
  Driver driver(config);
  const absl::Time start = driver.now;
  RequestState* running = driver.Add({.max_tokens = 50, .deadline = start + absl::Seconds(30)});
  RequestState* urgent = driver.Add({.deadline = start + absl::Seconds(20)});
  RequestState* patient = driver.Add({});
  driver.Step();
  const auto expired_at = [&](absl::Duration after) {
    std::vector<RequestState*> expired;
    driver.scheduler().CollectExpired(start + after, &expired);
    for (RequestState* request : expired) driver.scheduler().Remove(request);
    return expired;
  };
  EXPECT_THAT(expired_at(absl::Seconds(19)), ElementsAre());
  EXPECT_THAT(expired_at(absl::Seconds(20)), ElementsAre(urgent));
  EXPECT_THAT(expired_at(absl::Seconds(30)), ElementsAre(running));
  EXPECT_THAT(expired_at(absl::Seconds(99)), ElementsAre());
  EXPECT_THAT(expired_at(absl::Seconds(100)), ElementsAre(patient));
  EXPECT_TRUE(driver.scheduler().idle());
  EXPECT_EQ(driver.pool().num_used(), 0);
}

TEST(SchedulerTest, CountsTheWaitingPromptTokens) {
  EngineConfig config = TestConfig();
  config.max_num_seqs = 1;
  Driver driver(config);
  driver.Add({.prompt = 5, .max_tokens = 3});
  driver.Add({.prompt = 7});
  RequestState* third = driver.Add({.prompt = 11});
  EXPECT_EQ(driver.scheduler().waiting_prompt_tokens(), 23);
  driver.Step();
  EXPECT_EQ(driver.scheduler().waiting_prompt_tokens(), 18);
  driver.scheduler().Remove(third);
  EXPECT_EQ(driver.scheduler().waiting_prompt_tokens(), 7);
}

// Random comings and goings: everything ends, and no block is lost or held twice.
class SchedulerRandomTest : public testing::TestWithParam<int> {};

TEST_P(SchedulerRandomTest, EverythingEndsAndAllBlocksComeBack) {
  std::mt19937 random(GetParam());
  EngineConfig config = TestConfig();
  config.max_num_seqs = 6;
  Driver driver(config, /*num_blocks=*/64);
  std::vector<RequestState*> live;
  for (int i = 0; i < 2000; ++i) {
    driver.now += absl::Milliseconds(random() % 2000);
    if (random() % 3 == 0) {
      live.push_back(driver.Add({.prompt = 1 + static_cast<int>(random() % 40),
                                 .max_tokens = 1 + static_cast<int>(random() % 30),
                                 .priority = static_cast<int>(random() % 3),
                                 .n = 1 + static_cast<int>(random() % 3)}));
    }
    driver.Step();
    std::erase_if(live, [](const RequestState* r) {
      return std::all_of(r->sequences.begin(), r->sequences.end(),
                         [](const Sequence& s) { return s.finished; });
    });
    if (!live.empty() && random() % 5 == 0) {
      const size_t victim = random() % live.size();
      driver.scheduler().Remove(live[victim]);
      live.erase(live.begin() + static_cast<ptrdiff_t>(victim));
    }
    std::map<BlockId, int> owners;
    for (const RequestState* request : live) {
      for (const Sequence& sequence : request->sequences) {
        for (const BlockId block : sequence.block_table.blocks) ++owners[block];
      }
    }
    ASSERT_EQ(driver.pool().num_used(), owners.size());
    for (const auto& [block, count] : owners) {
      ASSERT_EQ(driver.pool().num_owners(block), count);
    }
  }
  int steps = 0;
  while (!driver.scheduler().idle()) {
    driver.Step();
    ASSERT_LE(++steps, 100000);
  }
  EXPECT_EQ(driver.pool().num_used(), 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SchedulerRandomTest, testing::Range(0, 10));

}  // namespace
}  // namespace tokenbutler
