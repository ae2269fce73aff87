#include "tests/engine/selection/selection_fixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "gtest/gtest.h"

namespace tokenbutler {
namespace {

constexpr int kRubbish = 0xff;  // NaN in every dtype

// Values of one token in one layer: `n` normally distributed numbers.
void Draw(unsigned seed, int layer, int token, int what, float scale, float* out, size_t n) {
  std::seed_seq place{seed, static_cast<unsigned>(layer), static_cast<unsigned>(token),
                      static_cast<unsigned>(what)};
  std::mt19937 random(place);
  std::normal_distribution<float> normal(0.0f, scale);
  for (size_t i = 0; i < n; ++i) out[i] = normal(random);
}

}  // namespace

FakeSequence::FakeSequence(const SelectionShape& shape, const AttentionParams& params,
                           int max_tokens, unsigned seed, int num_threads)
    : shape_(shape),
      params_(params),
      max_tokens_(max_tokens),
      num_threads_(num_threads),
      seeds_(static_cast<size_t>(max_tokens), seed),
      pool_(std::make_unique<ComputePool>(num_threads)) {
  config_.num_layers = shape.num_layers;
  config_.num_heads = num_heads();
  config_.num_kv_heads = shape.num_kv_heads;
  config_.head_dim = shape.head_dim;
  config_.hidden_size = config_.num_heads * shape.head_dim;
  config_.max_position = max_tokens;
  config_.rope = shape.rope;
  rope_ = std::make_unique<Rope>(*Rope::Create(config_.rope, shape.head_dim, max_tokens));
  resources_.config = &config_;
  resources_.rope = rope_.get();
  resources_.layout = {.num_layers = shape.num_layers,
                       .num_kv_heads = shape.num_kv_heads,
                       .head_dim = shape.head_dim,
                       .block_size = shape.block_size,
                       .dtype = shape.dtype};
  const KvLayout& layout = resources_.layout;
  const int num_blocks = layout.blocks_for(max_tokens);
  const int num_state_blocks = StateLayoutFor(params, resources_).blocks_for(num_blocks);
  const int num_all = num_blocks + num_state_blocks;
  store_ = *KvStore::Create(
      layout, {.capacity_bytes =
                   int64_t{num_all} * static_cast<int64_t>((layout.block_bytes() + 63) / 64 * 64)});
  resources_.layout = store_->layout();
  state_layout_ = StateLayoutFor(params, resources_);
  // Neither in order nor next to each other.
  for (int b = 0; b < num_blocks; ++b) table_.blocks.push_back(num_blocks - 1 - b);
  for (int b = 0; b < num_state_blocks; ++b) table_.state_blocks.push_back(num_all - 1 - b);
  const std::vector<std::byte> rubbish(layout.block_bytes(), std::byte{kRubbish});
  for (int b = 0; b < num_all; ++b) store_->WriteBlock(rubbish, b);
  store_->BlockBases(table_, max_tokens, &blocks_);
  store_->StateBases(table_, &state_blocks_);
  queries_.resize(static_cast<size_t>(shape.num_layers));
  for (std::vector<float>& queries : queries_) {
    queries.resize(static_cast<size_t>(max_tokens) * num_heads() * shape.head_dim, NAN);
  }
  lse_.resize(static_cast<size_t>(shape.num_layers));
}

std::unique_ptr<TokenSelector> FakeSequence::NewSelector() const {
  absl::StatusOr<std::unique_ptr<TokenSelector>> selector = CreateSelector(params_, resources_);
  EXPECT_TRUE(selector.ok()) << selector.status();
  return selector.ok() ? *std::move(selector) : nullptr;
}

std::unique_ptr<FakeSequence> FakeSequence::Fork(unsigned seed) const {
  auto fork = std::make_unique<FakeSequence>(shape_, params_, max_tokens_, seed, num_threads_);
  std::vector<std::byte> block(store_->layout().block_bytes());
  for (int b = 0; b < store_->num_blocks(); ++b) {
    store_->ReadBlock(b, absl::MakeSpan(block));
    fork->store_->WriteBlock(block, b);
  }
  fork->table_.num_tokens = table_.num_tokens;
  std::copy_n(seeds_.begin(), table_.num_tokens, fork->seeds_.begin());
  fork->queries_ = queries_;
  fork->lse_ = lse_;
  return fork;
}

float FakeSequence::softmax_scale() const {
  return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
}

void FakeSequence::WriteRows(int layer, int begin, int end) {
  const size_t head_dim = static_cast<size_t>(shape_.head_dim);
  const size_t query_size = num_heads() * head_dim;
  std::vector<float> key(head_dim), value(head_dim);
  for (int t = begin; t < end; ++t) {
    Draw(seeds_[t], layer, t, 0, 1.5f, queries_[layer].data() + t * query_size, query_size);
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      Draw(seeds_[t], layer, t, 1 + 2 * h, 1.0f, key.data(), head_dim);
      Draw(seeds_[t], layer, t, 2 + 2 * h, 1.0f, value.data(), head_dim);
      Row(layer, h, t).Store(key.data(), value.data());
    }
  }
}

LayerContext FakeSequence::Context(int layer, int context_len) {
  const KvLayout& layout = store_->layout();
  return {.layout = &layout,
          .blocks = absl::MakeConstSpan(blocks_).first(
              static_cast<size_t>(layout.blocks_for(context_len))),
          .state_layout = &state_layout_,
          .state_blocks = state_blocks_,
          .layer = layer,
          .context_len = context_len,
          .group_size = shape_.group_size,
          .softmax_scale = softmax_scale(),
          .lse = lse_[layer].empty() ? nullptr : lse_[layer].data(),
          .pool = pool_.get()};
}

void FakeSequence::Prefill(TokenSelector* selector, int num_tokens, int chunk) {
  const int stop = length() + num_tokens;
  ASSERT_LE(stop, max_tokens_);
  for (int begin = length(); begin < stop; begin += chunk) {
    const int end = std::min(begin + chunk, stop);
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      WriteRows(layer, begin, end);
      if (selector == nullptr) continue;
      selector->OnPrefill(Context(layer, end),
                          {.queries = Query(layer, begin),
                           .stride = static_cast<size_t>(num_heads()) * shape_.head_dim,
                           .num_rows = end - begin});
    }
    table_.num_tokens = end;
  }
}

std::vector<TokenSelection> FakeSequence::Decode(TokenSelector* selector) {
  const int position = length();
  const int context_len = position + 1;
  EXPECT_LE(context_len, max_tokens_);
  std::vector<TokenSelection> selections(static_cast<size_t>(shape_.num_layers));
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    WriteRows(layer, position, context_len);
    if (selector == nullptr) continue;
    if (selector->IsDenseLayer(layer) || (layer == 0 && params_.dense_first_layer)) continue;
    if (context_len <= params_.token_budget && !selector->WantsWeights()) continue;
    const LayerContext context = Context(layer, context_len);
    if (!selector->StandIn(context).empty()) continue;
    selector->Select(context, Query(layer, position), &selections[layer]);
    Attend(context, selections[layer], selector);
  }
  table_.num_tokens = context_len;
  return selections;
}

void FakeSequence::Attend(const LayerContext& context, const TokenSelection& selection,
                          TokenSelector* selector) {
  const int layer = context.layer;
  std::vector<std::vector<float>> weights(static_cast<size_t>(num_heads()));
  std::vector<const float*> rows;
  std::vector<float> lse;
  for (int head = 0; head < num_heads(); ++head) {
    const auto tokens = selection.tokens_of(head / shape_.group_size);
    std::vector<double> logits;
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (const int t : tokens) {
      logits.push_back(Logit(layer, head, context.context_len - 1, t));
      max = std::max(max, logits.back());
    }
    for (const double logit : logits) sum += std::exp(logit - max);
    for (const double logit : logits) {
      weights[head].push_back(static_cast<float>(std::exp(logit - max) / sum));
    }
    rows.push_back(weights[head].data());
    lse.push_back(static_cast<float>(max + std::log(sum)));
  }
  if (selector->WantsWeights()) selector->OnAttended(context, selection, rows.data());
  lse_[layer] = std::move(lse);
}

KvRow FakeSequence::Row(int layer, int kv_head, int token) const {
  return {&store_->layout(), blocks_, layer, kv_head, token};
}

std::vector<float> FakeSequence::Key(int layer, int kv_head, int token) const {
  std::vector<float> row(static_cast<size_t>(shape_.head_dim));
  Row(layer, kv_head, token).LoadKey(row.data());
  return row;
}

std::vector<float> FakeSequence::Value(int layer, int kv_head, int token) const {
  std::vector<float> row(static_cast<size_t>(shape_.head_dim));
  Row(layer, kv_head, token).LoadValue(row.data());
  return row;
}

const float* FakeSequence::Query(int layer, int position) const {
  return queries_[layer].data() + static_cast<size_t>(position) * num_heads() * shape_.head_dim;
}

double FakeSequence::Logit(int layer, int head, int position, int token) const {
  const float* query = Query(layer, position) + static_cast<size_t>(head) * shape_.head_dim;
  const std::vector<float> key = Key(layer, head / shape_.group_size, token);
  double dot = 0;
  for (int i = 0; i < shape_.head_dim; ++i) {
    dot += double{query[i]} * key[static_cast<size_t>(i)];
  }
  return dot * softmax_scale();
}

void ExpectWellFormed(const TokenSelection& selection, int num_kv_heads, int context_len,
                      int budget) {
  ASSERT_EQ(selection.num_kv_heads, num_kv_heads);
  for (int h = 0; h < num_kv_heads; ++h) {
    const auto tokens = selection.tokens_of(h);
    ASSERT_FALSE(tokens.empty());
    EXPECT_LE(static_cast<int>(tokens.size()), budget);
    EXPECT_LE(selection.counts[h], selection.capacity);
    for (size_t i = 1; i < tokens.size(); ++i) ASSERT_LT(tokens[i - 1], tokens[i]);
    EXPECT_GE(tokens.front(), 0);
    EXPECT_EQ(tokens.back(), context_len - 1);
  }
}

std::vector<std::vector<int>> TokensOf(const std::vector<TokenSelection>& step) {
  std::vector<std::vector<int>> lists;
  for (const TokenSelection& selection : step) {
    if (selection.num_kv_heads == 0) lists.emplace_back();
    for (int h = 0; h < selection.num_kv_heads; ++h) {
      const auto tokens = selection.tokens_of(h);
      lists.emplace_back(tokens.begin(), tokens.end());
    }
  }
  return lists;
}

}  // namespace tokenbutler
