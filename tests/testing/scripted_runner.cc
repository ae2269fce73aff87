#include "tests/testing/scripted_runner.h"

#include <algorithm>
#include <cstring>

#include "absl/time/clock.h"

namespace tokenbutler {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr float kFavoured = 8.0f;

// SplitMix64's finaliser.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t NextHash(uint64_t before, int position, int32_t token) {
  return Mix(before ^ Mix((static_cast<uint64_t>(position) << 32) ^ static_cast<uint64_t>(token)));
}

}  // namespace

class ScriptedRunner::State : public SequenceState {
 public:
  enum class Kind { kDecodes, kIdle, kObserves };
  // Has taken room for itself and `num_forks` forks, when it decodes.
  State(ScriptedRunner* runner, const AttentionParams& params, int num_forks,
        Kind kind = Kind::kDecodes)
      : runner_(runner), params_(params), kind_(kind), num_forks_(num_forks) {
    ++runner->num_states_;
  }
  ~State() override {
    --runner_->num_states_;
    if (kind_ == Kind::kDecodes) runner_->num_device_states_ -= 1 + num_forks_;
  }

  // A fork takes over room that was taken for it.
  bool GiveRoom() const { return num_forks_ > 0 && num_forks_-- > 0; }

  const AttentionParams& params() const { return params_; }
  Kind kind() const { return kind_; }
  bool has_records() const { return kind_ != Kind::kIdle; }
  int num_watched = 0;  // rows of a prompt that it was shown, by chunks or at once
  void Attend(int context_len) {
    if (runner_->attend) {
      runner_->attend(params_, context_len, &stats_);
      return;
    }
    ++stats_.attended_lists;
    stats_.attended_tokens += context_len;
    stats_.context_tokens += context_len;
  }
  AttentionStats stats() const override { return stats_; }

 private:
  ScriptedRunner* const runner_;
  const AttentionParams params_;
  const Kind kind_;
  mutable int num_forks_;  // that are still to come
  AttentionStats stats_;
};

ScriptedRunner::ScriptedRunner(const KvLayout& layout, int num_blocks, int vocab_size)
    : layout_(layout),
      vocab_size_(vocab_size),
      rows_(static_cast<size_t>(num_blocks) * static_cast<size_t>(layout.block_size)) {}

absl::Status ScriptedRunner::Run(const StepPlan& plan) {
  WaitForPermit();
  if (record) {
    std::vector<ItemRecord> step;
    for (const StepItem& item : plan.decode) {
      step.push_back({item.start_position, 1, true, item.token_ids[0]});
    }
    for (const StepItem& item : plan.prefill_chunks) {
      step.push_back(
          {item.start_position, static_cast<int>(item.token_ids.size()), false, item.token_ids[0]});
    }
    MutexLock lock(&mutex_);
    steps_.push_back(std::move(step));
  }
  if (before_run) RETURN_IF_ERROR(before_run(plan));
  logits_.clear();
  decode_.clear();
  prefill_.clear();
  for (const StepItem& item : plan.decode) {
    decode_.push_back(RunItem(item));
    if (item.state != nullptr) static_cast<State*>(item.state)->Attend(item.start_position + 1);
  }
  for (const StepItem& item : plan.prefill_chunks) prefill_.push_back(RunItem(item));
  return absl::OkStatus();
}

ScriptedRunner::Rows ScriptedRunner::RunItem(const StepItem& item) {
  Rows rows{logits_.size() / static_cast<size_t>(vocab_size_), 0};
  const int num_tokens = static_cast<int>(item.token_ids.size());
  const State* state = static_cast<const State*>(item.state);
  const bool has_records = state != nullptr && state->has_records();
  for (int i = 0; i < num_tokens; ++i) {
    const int position = item.start_position + i;
    const uint64_t before = position == 0 ? 0 : Row(*item.block_table, position - 1);
    uint64_t hash = NextHash(before, position, item.token_ids[i]);
    Row(*item.block_table, position) = hash;
    if (has_records) {
      UpdateRecords(*item.block_table, position, position + 1);
      if (!RecordsAreRight(*item.block_table, position + 1)) hash = Mix(hash);
    }
    const bool wanted = item.logits == LogitsWanted::kAll ||
                        (item.logits == LogitsWanted::kLast && i == num_tokens - 1);
    if (!wanted) continue;
    AppendLogits(hash, position, item.token_ids[i], &logits_);
    ++rows.count;
  }
  for (const PromptObserver& observer : item.observers) {
    UpdateRecords(observer.table, item.start_position, item.start_position + num_tokens);
    static_cast<State*>(observer.state.get())->num_watched += num_tokens;
  }
  return rows;
}

void ScriptedRunner::UpdateRecords(const BlockTable& table, int begin, int end) {
  for (int position = begin; position < end; ++position) {
    if ((position + 1) % layout_.block_size != 0) continue;
    Record(table, position / layout_.block_size) = Row(table, position);
  }
}

uint64_t& ScriptedRunner::Record(const BlockTable& table, int kv_block) {
  const size_t block_size = static_cast<size_t>(layout_.block_size);
  const size_t block = static_cast<size_t>(table.state_blocks.at(kv_block / block_size));
  return rows_.at(block * block_size + kv_block % block_size);
}

bool ScriptedRunner::RecordsAreRight(const BlockTable& table, int num_tokens) {
  for (int block = 0; block < num_tokens / layout_.block_size; ++block) {
    const int last = (block + 1) * layout_.block_size - 1;
    if (Record(table, block) != Row(table, last)) return false;
  }
  return true;
}

absl::Status ScriptedRunner::CheckAttention(const AttentionParams& params) const {
  return params.Validate();
}

// As many records as a block has rows.
StateLayout ScriptedRunner::state_layout(const AttentionParams& params) const {
  if (!params.sparse()) return {};
  return {.record_bytes = layout_.block_bytes() / static_cast<size_t>(layout_.block_size),
          .num_layers = 1,
          .num_kv_heads = 1,
          .lane_bytes = layout_.block_bytes(),
          .lane_stride = layout_.block_bytes()};
}

absl::StatusOr<std::unique_ptr<SequenceState>> ScriptedRunner::NewState(
    const AttentionParams& params, int /*max_tokens*/, int num_forks) {
  if (before_state) RETURN_IF_ERROR(before_state(params));
  if (num_device_states_ + 1 + num_forks > device_states) {
    return ResourceExhaustedError("the device tier has no room for {} states", 1 + num_forks);
  }
  num_device_states_ += 1 + num_forks;
  return std::make_unique<State>(this, params, num_forks);
}

absl::StatusOr<std::unique_ptr<SequenceState>> ScriptedRunner::ForkState(
    const SequenceState& state) {
  const State& forked = static_cast<const State&>(state);
  if (before_state) RETURN_IF_ERROR(before_state(forked.params()));
  if (forked.kind() == State::Kind::kIdle) return NewIdleState(forked.params());
  if (!forked.GiveRoom()) return InternalError("no room was taken for the fork");
  return std::make_unique<State>(this, forked.params(), 0);
}

absl::StatusOr<std::unique_ptr<SequenceState>> ScriptedRunner::NewIdleState(
    const AttentionParams& params) {
  if (before_state) RETURN_IF_ERROR(before_state(params));
  return std::make_unique<State>(this, params, 0, State::Kind::kIdle);
}

bool ScriptedRunner::learns_from_prefill(const AttentionParams& params) const {
  return std::find(learning.begin(), learning.end(), params.policy) != learning.end();
}

absl::StatusOr<std::unique_ptr<SequenceState>> ScriptedRunner::NewObserver(
    const AttentionParams& params) {
  if (before_state) RETURN_IF_ERROR(before_state(params));
  return std::make_unique<State>(this, params, 0, State::Kind::kObserves);
}

absl::StatusOr<std::unique_ptr<SequenceState>> ScriptedRunner::ContinueState(
    const SequenceState& observer, int max_tokens, int num_forks) {
  const State& watched = static_cast<const State&>(observer);
  if (watched.kind() != State::Kind::kObserves) return InternalError("not an observer");
  return NewState(watched.params(), max_tokens, num_forks);
}

absl::Status ScriptedRunner::AdoptRows(const BlockTable& table, SequenceState* state) {
  UpdateRecords(table, 0, table.num_tokens);
  static_cast<State*>(state)->num_watched += table.num_tokens;
  return absl::OkStatus();
}

uint64_t& ScriptedRunner::Row(const BlockTable& table, int position) {
  const size_t block = static_cast<size_t>(table.blocks.at(position / layout_.block_size));
  return rows_.at(block * static_cast<size_t>(layout_.block_size) +
                  static_cast<size_t>(position % layout_.block_size));
}

void ScriptedRunner::AppendLogits(uint64_t hash, int position, int32_t token,
                                  std::vector<float>* logits) const {
  const size_t begin = logits->size();
  for (int id = 0; id < vocab_size_; ++id) {
    // 24 bits -> [-2, 2)
    const uint64_t bits = Mix(hash ^ static_cast<uint64_t>(id)) >> 40;
    logits->push_back(static_cast<float>(bits) * 0x1p-22f - 2.0f);
  }
  const int32_t favoured = script ? script(position, token) : -1;
  if (favoured >= 0) (*logits)[begin + static_cast<size_t>(favoured)] = kFavoured;
  if (edit_logits) edit_logits(position, token, absl::MakeSpan(*logits).subspan(begin));
}

std::vector<float> ScriptedRunner::LogitsAfter(absl::Span<const int32_t> tokens) const {
  uint64_t hash = 0;
  for (size_t i = 0; i < tokens.size(); ++i) hash = NextHash(hash, static_cast<int>(i), tokens[i]);
  std::vector<float> logits;
  AppendLogits(hash, static_cast<int>(tokens.size()) - 1, tokens.back(), &logits);
  return logits;
}

void ScriptedRunner::CopyBlock(BlockId from, BlockId to) {
  const size_t size = static_cast<size_t>(layout_.block_size);
  std::copy_n(rows_.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(from) * size), size,
              rows_.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(to) * size));
  MutexLock lock(&mutex_);
  ++num_block_copies_;
}

void ScriptedRunner::WriteBlock(absl::Span<const std::byte> bytes, BlockId to) {
  const size_t size = static_cast<size_t>(layout_.block_size);
  std::memcpy(&rows_.at(static_cast<size_t>(to) * size), bytes.data(),
              std::min(bytes.size(), size * sizeof(uint64_t)));
}

void ScriptedRunner::WaitForPermit() {
  MutexLock lock(&mutex_);
  ++num_steps_;
  const absl::Time limit = absl::Now() + kPatience;
  waiting_ = true;
  changed_.SignalAll();
  while (held_ && permits_ == 0 && absl::Now() < limit) {
    changed_.WaitWithTimeout(&mutex_, kPatience);
  }
  waiting_ = false;
  if (permits_ > 0) --permits_;
}

void ScriptedRunner::Hold() {
  MutexLock lock(&mutex_);
  held_ = true;
}

void ScriptedRunner::Permit(int steps) {
  MutexLock lock(&mutex_);
  permits_ += steps;
  changed_.SignalAll();
}

void ScriptedRunner::Resume() {
  MutexLock lock(&mutex_);
  held_ = false;
  permits_ = 0;
  changed_.SignalAll();
}

bool ScriptedRunner::WaitUntilHeld() {
  const absl::Time limit = absl::Now() + kPatience;
  MutexLock lock(&mutex_);
  while (!(waiting_ && held_ && permits_ == 0)) {
    if (absl::Now() >= limit) return false;
    changed_.WaitWithTimeout(&mutex_, limit - absl::Now());
  }
  return true;
}

std::vector<std::vector<ScriptedRunner::ItemRecord>> ScriptedRunner::steps() const {
  MutexLock lock(&mutex_);
  return steps_;
}

int ScriptedRunner::num_steps() const {
  MutexLock lock(&mutex_);
  return num_steps_;
}

int ScriptedRunner::num_block_copies() const {
  MutexLock lock(&mutex_);
  return num_block_copies_;
}

}  // namespace tokenbutler
