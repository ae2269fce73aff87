#include "bench/random_kv.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>

#include "engine/selection/kv_rows.h"

namespace tokenbutler {
namespace {

constexpr int kSampleTokens = 512;
constexpr int kPromptQueries = 32;  // what snapkv looks at
// Rows begin at a place of their own in one table of normal values: filling gigabytes takes
// seconds.
constexpr uint32_t kTableSize = 1 << 16;

std::vector<float> NormalTable(size_t size) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

// Mean and standard deviation per channel of the key or the value rows of one layer and KV head.
struct Channels {
  std::vector<float> mean, deviation;  // [head_dim]
};

Channels Measure(const KvStore& store, const BlockTable& table, int layer, int kv_head,
                 bool is_value) {
  const KvLayout& layout = store.layout();
  std::vector<double> sum(layout.head_dim), squares(layout.head_dim);
  std::vector<std::byte*> blocks;
  store.BlockBases(table, table.num_tokens, &blocks);
  std::vector<float> row(layout.head_dim);
  for (int t = 0; t < table.num_tokens; ++t) {
    const KvRow at{&layout, blocks, layer, kv_head, t};
    is_value ? at.LoadValue(row.data()) : at.LoadKey(row.data());
    for (int i = 0; i < layout.head_dim; ++i) {
      const double x = row[i];
      sum[i] += x;
      squares[i] += x * x;
    }
  }
  Channels channels;
  for (int i = 0; i < layout.head_dim; ++i) {
    const double mean = sum[i] / table.num_tokens;
    channels.mean.push_back(static_cast<float>(mean));
    channels.deviation.push_back(
        static_cast<float>(std::sqrt(std::max(0.0, squares[i] / table.num_tokens - mean * mean))));
  }
  return channels;
}

// Of all layers and KV heads: keys at 2 * lane, values behind them.
absl::StatusOr<std::vector<Channels>> MeasureModel(MeasuredModel& model) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MeasuredSequence> sample,
                   MeasuredSequence::Create(model, {}, kSampleTokens));
  std::mt19937 random(1);
  std::uniform_int_distribution<int32_t> any_id(0, model.config().vocab_size - 1);
  std::vector<int32_t> ids(kSampleTokens);
  for (int32_t& id : ids) id = any_id(random);
  RETURN_IF_ERROR(sample->Prefill(ids, kSampleTokens));
  std::vector<Channels> all;
  for (int layer = 0; layer < model.layout().num_layers; ++layer) {
    for (int head = 0; head < model.layout().num_kv_heads; ++head) {
      all.push_back(Measure(model.store(), sample->table(), layer, head, /*is_value=*/false));
      all.push_back(Measure(model.store(), sample->table(), layer, head, /*is_value=*/true));
    }
  }
  return all;
}

void DrawRow(const Channels& channels, const float* normal, float* row) {
  for (size_t i = 0; i < channels.mean.size(); ++i) {
    row[i] = channels.mean[i] + channels.deviation[i] * normal[i];
  }
}

}  // namespace

absl::Status AppendRandomRows(MeasuredModel& model, int num_tokens, MeasuredSequence* sequence) {
  const KvLayout& layout = model.layout();
  ASSIGN_OR_RETURN(const std::vector<Channels> channels, MeasureModel(model));
  const std::vector<float> normal = NormalTable(kTableSize + layout.head_dim);
  BlockTable& table = sequence->table();
  const int begin = table.num_tokens, end = begin + num_tokens;
  const int first_block = begin / layout.block_size;
  std::vector<std::byte*> blocks;
  model.store().BlockBases(table, end, &blocks);
  model.pool().ParallelFor(layout.blocks_for(end) - first_block, [&](int task) {
    std::minstd_rand random(static_cast<uint32_t>(first_block + task) + 1);
    const int block_begin = (first_block + task) * layout.block_size;
    std::vector<float> key(layout.head_dim), value(layout.head_dim);
    for (int t = std::max(begin, block_begin); t < std::min(end, block_begin + layout.block_size);
         ++t) {
      for (int layer = 0; layer < layout.num_layers; ++layer) {
        for (int head = 0; head < layout.num_kv_heads; ++head) {
          const size_t lane = static_cast<size_t>(layer) * layout.num_kv_heads + head;
          DrawRow(channels[2 * lane], &normal[random() % kTableSize], key.data());
          DrawRow(channels[2 * lane + 1], &normal[random() % kTableSize], value.data());
          KvRow{&layout, blocks, layer, head, t}.Store(key.data(), value.data());
        }
      }
    }
  });
  table.num_tokens = end;
  return absl::OkStatus();
}

RandomQueries::RandomQueries(const ModelConfig& config) {
  const size_t row = static_cast<size_t>(config.num_heads) * config.head_dim;
  values_ = NormalTable(kPromptQueries * row);
  layers_.assign(static_cast<size_t>(config.num_layers),
                 {.queries = values_.data(), .stride = row, .num_rows = kPromptQueries});
}

}  // namespace tokenbutler
