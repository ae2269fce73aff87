#include "engine/token_rows.h"

#include <algorithm>
#include <utility>

#include "engine/kernels/linear.h"
#include "engine/sequence_attention.h"

namespace tokenbutler {
namespace {

constexpr size_t kAlignment = 64;

size_t AlignUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Deals out one region: sizes first with a null base, then addresses.
class Cursor {
 public:
  explicit Cursor(std::byte* base) : base_(base) {}
  template <typename T>
  void Take(T** pointer, size_t bytes) {
    *pointer = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset_);
    offset_ += AlignUp(bytes);
  }
  size_t offset() const { return offset_; }

 private:
  std::byte* base_;
  size_t offset_ = 0;
};

}  // namespace

TokenRows::TokenRows(const ModelConfig& config, DType compute_dtype, const KvStore& kv_store)
    : config_(config),
      kv_store_(kv_store),
      compute_dtype_(compute_dtype),
      unrounded_size_(std::max(
          {config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size})) {}

absl::Status TokenRows::Reserve(int num_rows) {
  if (num_rows <= capacity_) return absl::OkStatus();
  const size_t rows = static_cast<size_t>(num_rows);
  const size_t compute = DTypeBytes(compute_dtype_);
  const auto lay_out = [&](std::byte* base) {
    Cursor cursor(base);
    cursor.Take(&activations_.residual, rows * config_.hidden_size * sizeof(float));
    cursor.Take(&activations_.normed, rows * config_.hidden_size * compute);
    cursor.Take(&activations_.qkv, rows * qkv_size() * sizeof(float));
    cursor.Take(&activations_.attended, rows * attended_size() * compute);
    cursor.Take(&activations_.projected, rows * config_.hidden_size * sizeof(float));
    cursor.Take(&activations_.gate_up, rows * 2 * config_.intermediate_size * sizeof(float));
    cursor.Take(&activations_.activated, rows * config_.intermediate_size * compute);
    const bool rounds = compute_dtype_ != DType::kF32;
    cursor.Take(&activations_.unrounded, rounds ? rows * unrounded_size_ * sizeof(float) : 0);
    return cursor.offset();
  };
  capacity_ = 0;  // if the allocation fails
  storage_ = Buffer();
  ASSIGN_OR_RETURN(storage_, Buffer::Allocate(lay_out(nullptr), MemoryKind::kHugePage));
  lay_out(storage_.data());
  token_ids_.resize(rows);
  places_.resize(rows);
  rotations_.resize(rows * config_.head_dim);
  capacity_ = num_rows;
  return absl::OkStatus();
}

absl::Status TokenRows::Reset(int num_rows, Kind kind) {
  kind_ = kind;
  num_rows_ = 0;
  num_sequences_ = 0;
  return Reserve(num_rows);
}

void TokenRows::Add(const StepItem& item, const Rope& rope) {
  if (num_sequences_ == sequences_.size()) sequences_.emplace_back();
  Sequence& sequence = sequences_[num_sequences_++];
  sequence.first_row = num_rows_;
  sequence.num_rows = static_cast<int>(item.token_ids.size());
  sequence.start_position = item.start_position;
  sequence.attention = static_cast<SequenceAttention*>(item.state);
  if (sequence.attention == nullptr) {
    kv_store_.BlockBases(*item.block_table, sequence.context_len(), &sequence.blocks);
  } else {
    sequence.attention->BeginStep(*item.block_table, sequence.context_len(), is_decode(),
                                  &sequence.blocks, &sequence.state_blocks);
  }
  sequence.observers.resize(item.observers.size());
  for (size_t i = 0; i < item.observers.size(); ++i) {
    Sequence::Observer& observer = sequence.observers[i];
    observer.attention = static_cast<SequenceAttention*>(item.observers[i].state.get());
    observer.attention->BeginStep(item.observers[i].table, sequence.context_len(),
                                  /*is_decode=*/false, &sequence.blocks, &observer.state_blocks);
  }

  const int half = config_.head_dim / 2;
  const int block_size = kv_store_.layout().block_size;
  for (int i = 0; i < sequence.num_rows; ++i, ++num_rows_) {
    const int position = item.start_position + i;
    float* cos = rotations_.data() + static_cast<size_t>(num_rows_) * config_.head_dim;
    rope.Rotation(position, cos, cos + half);
    token_ids_[num_rows_] = item.token_ids[i];
    places_[num_rows_] = {.cos = cos,
                          .sin = cos + half,
                          .block = sequence.blocks[position / block_size],
                          .row_in_block = position % block_size};
  }
}

float* TokenRows::Unrounded(void* activation, int row, int size) const {
  float* base =
      compute_dtype_ == DType::kF32 ? static_cast<float*>(activation) : activations_.unrounded;
  return base + static_cast<size_t>(row) * size;
}

void TokenRows::Round(void* activation, int begin, int end, int size) const {
  if (compute_dtype_ == DType::kF32) return;
  RoundToBf16(Unrounded(activation, begin, size), (end - begin) * size,
              static_cast<BF16*>(activation) + static_cast<size_t>(begin) * size);
}

}  // namespace tokenbutler
