// Sequences that are admitted, grow, fork and end at random, over one pool and its memory, against
// what each has written: no block leaks, none is used twice, none is written by two.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "offload/block_pool.h"
#include "offload/kv_store.h"
#include "offload/state_layout.h"

namespace tokenbutler {
namespace {

struct WrittenSequence {
  BlockTable table;
  int max_tokens = 0;
  std::vector<uint32_t> tokens;   // what was written, token by token
  std::vector<uint32_t> records;  // per KV block that is complete
};

class SequencesTest : public testing::TestWithParam<int> {
 protected:
  static constexpr int kBlockSize = 4;

  SequencesTest()
      : random_(GetParam()),
        store_(NewStore()),
        layout_(store_->layout()),
        // One to four KV blocks' records in a state block, or no state at all.
        state_(StateLayout::For(layout_, std::vector<size_t>{0, 64, 128, 256}[GetParam() % 4])),
        pool_(layout_, store_->num_blocks()) {}

  // Of 60 blocks in groups, which no region holds many of.
  static std::unique_ptr<KvStore> NewStore() {
    const KvLayout layout{.num_layers = 2,
                          .num_kv_heads = 2,
                          .head_dim = 8,
                          .block_size = kBlockSize,
                          .dtype = DType::kF32};
    const auto block_bytes = static_cast<int64_t>(layout.block_bytes());
    auto store = KvStore::Create(
        layout, {.capacity_bytes = 60 * block_bytes, .max_region_bytes = 7 * block_bytes});
    EXPECT_GT((*store)->layout().group_blocks, 1);
    return *std::move(store);
  }

  int NumBlocks(int tokens) const { return layout_.blocks_for(tokens); }

  // As a request is admitted: all its blocks, or none.
  bool Admit(int max_tokens) {
    const int kv = NumBlocks(max_tokens);
    const int state = state_.blocks_for(kv);
    if (kv + state > pool_.num_free()) {
      std::vector<BlockId> none;
      EXPECT_FALSE(pool_.Allocate(kv + state, &none));
      EXPECT_TRUE(none.empty());
      return false;
    }
    WrittenSequence sequence;
    sequence.max_tokens = max_tokens;
    EXPECT_TRUE(pool_.Allocate(kv, &sequence.table.blocks));
    EXPECT_TRUE(pool_.Allocate(state, &sequence.table.state_blocks));
    sequences_.push_back(std::move(sequence));
    return true;
  }

  void Append(WrittenSequence* sequence) {
    if (sequence->table.num_tokens == sequence->max_tokens) return;
    const int token = sequence->table.num_tokens++;
    const uint32_t value = static_cast<uint32_t>(random_());
    for (int l = 0; l < layout_.num_layers; ++l) {
      for (int h = 0; h < layout_.num_kv_heads; ++h) {
        std::memcpy(store_->key_row(sequence->table, l, h, token), &value, sizeof(value));
        std::memcpy(store_->value_row(sequence->table, l, h, token), &value, sizeof(value));
      }
    }
    sequence->tokens.push_back(value);
    if (state_.record_bytes == 0 || sequence->table.num_tokens % kBlockSize != 0) return;
    const uint32_t record = static_cast<uint32_t>(random_());
    ForRecords(*sequence, token / kBlockSize,
               [&](std::byte* at) { std::memcpy(at, &record, sizeof(record)); });
    sequence->records.push_back(record);
  }

  // Shares the full blocks, of KV and of state, and copies the partly filled ones.
  void Fork(size_t index) {
    const WrittenSequence& source = sequences_[index];
    const int tokens = source.table.num_tokens;
    const int shared = tokens / kBlockSize;
    const int shared_state = state_.record_bytes == 0 ? 0 : shared / state_.kv_blocks();
    const int kv = NumBlocks(source.max_tokens) - shared;
    const int state = state_.blocks_for(NumBlocks(source.max_tokens)) - shared_state;
    if (kv + state > pool_.num_free()) return;
    WrittenSequence fork = source;
    fork.table.blocks.resize(static_cast<size_t>(shared));
    fork.table.state_blocks.resize(static_cast<size_t>(shared_state));
    pool_.Share(fork.table.blocks);
    pool_.Share(fork.table.state_blocks);
    EXPECT_TRUE(pool_.Allocate(kv, &fork.table.blocks));
    EXPECT_TRUE(pool_.Allocate(state, &fork.table.state_blocks));
    if (tokens % kBlockSize != 0) {
      store_->CopyBlock(source.table.blocks[shared], fork.table.blocks[shared]);
    }
    if (state_.record_bytes != 0 && shared % state_.kv_blocks() != 0) {
      store_->CopyBlock(source.table.state_blocks[shared_state],
                        fork.table.state_blocks[shared_state]);
    }
    sequences_.push_back(std::move(fork));
  }

  void End(size_t index) {
    pool_.Release(sequences_[index].table.blocks);
    pool_.Release(sequences_[index].table.state_blocks);
    sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(index));
  }

  template <typename Fn>
  void ForRecords(const WrittenSequence& sequence, int kv_block, const Fn& fn) {
    std::vector<std::byte*> bases;
    store_->StateBases(sequence.table, &bases);
    for (int l = 0; l < layout_.num_layers; ++l) {
      for (int h = 0; h < layout_.num_kv_heads; ++h) {
        fn(bases[static_cast<size_t>(kv_block / state_.kv_blocks())] +
           state_.offset(l, h, kv_block));
      }
    }
  }

  void ExpectWhatWasWritten(const WrittenSequence& sequence) {
    const auto holds = [](const std::byte* at, uint32_t value) {
      return std::memcmp(at, &value, sizeof(value)) == 0;
    };
    for (int t = 0; t < sequence.table.num_tokens; ++t) {
      const uint32_t value = sequence.tokens[static_cast<size_t>(t)];
      for (int l = 0; l < layout_.num_layers; ++l) {
        for (int h = 0; h < layout_.num_kv_heads; ++h) {
          ASSERT_TRUE(holds(store_->key_row(sequence.table, l, h, t), value)) << t;
          ASSERT_TRUE(holds(store_->value_row(sequence.table, l, h, t), value)) << t;
        }
      }
    }
    for (size_t b = 0; b < sequence.records.size(); ++b) {
      ForRecords(sequence, static_cast<int>(b), [&](const std::byte* at) {
        EXPECT_TRUE(holds(at, sequence.records[b])) << "record of block " << b;
      });
    }
  }

  void ExpectThePoolKnows() {
    std::map<BlockId, int> owners;
    for (const WrittenSequence& sequence : sequences_) {
      for (const BlockId block : sequence.table.blocks) ++owners[block];
      for (const BlockId block : sequence.table.state_blocks) ++owners[block];
    }
    ASSERT_EQ(pool_.num_used(), owners.size());
    for (const auto& [block, count] : owners) ASSERT_EQ(pool_.num_owners(block), count);
    most_used_ = std::max(most_used_, pool_.num_used());
    ASSERT_EQ(pool_.high_water(), most_used_);
  }

  std::mt19937 random_;
  const std::unique_ptr<KvStore> store_;
  const KvLayout layout_;
  const StateLayout state_;
  BlockPool pool_;
  std::vector<WrittenSequence> sequences_;
  int most_used_ = 0;
};

TEST_P(SequencesTest, KeepWhatTheyWroteAndGiveEverythingBack) {
  for (int step = 0; step < 3000 && !HasFailure(); ++step) {
    const size_t any = sequences_.empty() ? 0 : random_() % sequences_.size();
    switch (random_() % 12) {
      case 0:
        Admit(1 + static_cast<int>(random_() % 40));
        break;
      case 1:
        if (!sequences_.empty()) Fork(any);
        break;
      case 2:
        if (!sequences_.empty() && random_() % 2 == 0) End(any);
        break;
      default:
        if (!sequences_.empty()) Append(&sequences_[any]);
    }
    ExpectThePoolKnows();
    if (step % 16 == 0) {
      for (const WrittenSequence& sequence : sequences_) ExpectWhatWasWritten(sequence);
    }
  }
  while (!sequences_.empty()) End(0);
  EXPECT_EQ(pool_.num_free(), pool_.num_blocks());
}

INSTANTIATE_TEST_SUITE_P(Seeds, SequencesTest, testing::Range(0, 12));

}  // namespace
}  // namespace tokenbutler
