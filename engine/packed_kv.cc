#include "engine/packed_kv.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "engine/kernels/kv_row.h"
#include "engine/prefill_rows.h"
#include "engine/prefill_tasks.h"

namespace tokenbutler {
namespace {

constexpr int kPassTokens = 16;  // packed together: a cache line of float32

// Grows by half at least: each chunk of a prompt needs a little more than the one before.
void Reserve(size_t bytes, Buffer* buffer) {
  if (buffer->size() >= bytes) return;
  bytes = std::max(bytes, buffer->size() + buffer->size() / 2);
  *buffer = Buffer();
  absl::StatusOr<Buffer> allocated = Buffer::Allocate(bytes, MemoryKind::kHugePage);
  if (!allocated.ok()) throw std::bad_alloc();
  *buffer = *std::move(allocated);
}

// What a thread packs in: rows of kPassTokens tokens.
template <typename T>
struct PassRows {
  std::vector<T> read;    // [kPassTokens, head_dim]
  std::vector<T> padded;  // [kPassTokens, padded_dim]
  std::vector<float> widened;

  void Resize(int head_dim, int padded_dim) {
    read.resize(static_cast<size_t>(kPassTokens) * head_dim);
    padded.resize(static_cast<size_t>(kPassTokens) * padded_dim);
  }
};

// The rows of tokens [token, token + kPassTokens) of a sequence, zeros from `end` on. `rows_of`:
// KeyRowsOf or ValueRowsOf.
template <typename T, typename RowsOf>
void ReadPass(const std::vector<std::byte*>& blocks, const KvLayout& layout, int token, int end,
              int padded_dim, const RowsOf& rows_of, PassRows<T>* pass) {
  const int head_dim = layout.head_dim;
  const int num_tokens = std::clamp(end - token, 0, kPassTokens);
  for (int i = 0; i < num_tokens;) {
    const int block = (token + i) / layout.block_size, row = (token + i) % layout.block_size;
    const int count = std::min(num_tokens - i, layout.block_size - row);
    ReadRows(rows_of(blocks[block], row), layout, count, &pass->widened,
             pass->read.data() + static_cast<size_t>(i) * head_dim);
    i += count;
  }
  for (int i = 0; i < kPassTokens; ++i) {
    T* to = pass->padded.data() + static_cast<size_t>(i) * padded_dim;
    const int count = i < num_tokens ? head_dim : 0;
    std::copy_n(pass->read.data() + static_cast<size_t>(i) * head_dim, count, to);
    std::fill(to + count, to + padded_dim, T{});
  }
}

// Columns `token` ... of a block of keys, [padded_dim, num_columns] in words of 4 bytes: a float or
// a pair of bf16.
template <typename T>
void PackKeys(const T* rows, int padded_dim, int num_columns, int token, T* block) {
  const int num_words = padded_dim * static_cast<int>(sizeof(T)) / 4;
  auto* to = reinterpret_cast<std::byte*>(block) + static_cast<size_t>(token) * 4;
  const auto* from = reinterpret_cast<const std::byte*>(rows);
  for (int word = 0; word < num_words; ++word, to += static_cast<size_t>(num_columns) * 4) {
    for (int i = 0; i < kPassTokens; ++i) {
      std::memcpy(to + i * 4, from + (static_cast<size_t>(i) * num_words + word) * 4, 4);
    }
  }
}

void PackValues(const float* rows, int padded_dim, float* to) {
  std::copy_n(rows, kPassTokens * padded_dim, to);
}
void PackValues(const BF16* rows, int padded_dim, BF16* to) {
  for (int i = 0; i < kPassTokens; i += 2, rows += 2 * padded_dim) {
    for (int d = 0; d < padded_dim; ++d) {
      *to++ = rows[d];
      *to++ = rows[padded_dim + d];
    }
  }
}

}  // namespace

template <typename T>
void PackedKv<T>::Gather(const TokenRows& rows, int layer, int first, int end, ComputePool& pool) {
  const KvLayout& layout = rows.kv_store().layout();
  padded_dim_ = (layout.head_dim + kDimAlign - 1) / kDimAlign * kDimAlign;
  first_block_ = first / kTokens;
  num_blocks_ = (end - 1) / kTokens + 1 - first_block_;
  const size_t size = Offset(layout.num_kv_heads, 0);
  Reserve(size * sizeof(T), &keys_);
  Reserve(size * sizeof(T), &values_);
  RunLibTorchTasks(pool, num_blocks_ * layout.num_kv_heads, [&](int task) {
    PackBlock(rows, layer, task / num_blocks_, task % num_blocks_, end);
  });
}

template <typename T>
void PackedKv<T>::PackBlock(const TokenRows& rows, int layer, int kv_head, int index, int end) {
  const KvLayout& layout = rows.kv_store().layout();
  const std::vector<std::byte*>& blocks = rows.sequences()[0].blocks;
  thread_local PassRows<T> pass;
  pass.Resize(layout.head_dim, padded_dim_);
  T* keys = keys_.as<T>() + Offset(kv_head, index);
  T* values = values_.as<T>() + Offset(kv_head, index);
  const auto keys_of = [&](const std::byte* block, int row) {
    return KeyRowsOf(layout, block, layer, kv_head, row);
  };
  const auto values_of = [&](const std::byte* block, int row) {
    return ValueRowsOf(layout, block, layer, kv_head, row);
  };
  const int begin = (first_block_ + index) * kTokens;
  for (int i = 0; i < kTokens; i += kPassTokens) {
    ReadPass(blocks, layout, begin + i, end, padded_dim_, keys_of, &pass);
    PackKeys(pass.padded.data(), padded_dim_, kTokens, i, keys);
    ReadPass(blocks, layout, begin + i, end, padded_dim_, values_of, &pass);
    PackValues(pass.padded.data(), padded_dim_, values + static_cast<size_t>(i) * padded_dim_);
  }
}

template class PackedKv<float>;
template class PackedKv<BF16>;

}  // namespace tokenbutler
