#include <memory>
#include <vector>

#include "offload/host_tier.h"
#include "offload/kv_layout.h"
#include "offload/resident_tokens.h"

namespace tokenbutler {
namespace {

// The device tier of a CPU: the host memory itself. Every token is resident, rows are gathered by
// their index, nothing is copied and nobody waits.
class DirectTokens : public ResidentTokens {
 public:
  DirectTokens(const KvLayout& layout, const HostTier& host)
      : layout_(layout), host_(host), rows_(static_cast<size_t>(layout.num_kv_heads)) {}

  absl::StatusOr<std::unique_ptr<ResidentTokens>> Fork() const override {
    return NewDirectTokens(layout_, host_);
  }
  void BlockBases(const BlockTable& table, int num_tokens,
                  std::vector<std::byte*>* bases) override {
    const int count = layout_.blocks_for(num_tokens);
    bases->reserve(table.blocks.size());
    bases->resize(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) (*bases)[i] = host_.block(table.blocks[i]);
    blocks_.reserve(table.blocks.size());
    blocks_.assign(bases->begin(), bases->end());
  }
  void Prefetch(int, const TokenSelection&) override {}
  ResidentView Fetch(int, const TokenSelection& selection, bool) override {
    for (int h = 0; h < selection.num_kv_heads; ++h) {
      rows_[h] = selection.tokens_of(h).data();
      counters_.lookups += selection.counts[h];
      counters_.hits += selection.counts[h];
    }
    return {.blocks = blocks_.data(), .rows = rows_.data(), .num_rows = selection.counts.data()};
  }
  void EndStep() override {}
  void BeginPrefill(int) override {}
  const OffloadCounters& counters() const override { return counters_; }

 private:
  const KvLayout layout_;
  const HostTier& host_;
  OffloadCounters counters_;
  std::vector<const std::byte*> blocks_;
  std::vector<const int32_t*> rows_;  // [num_kv_heads]
};

}  // namespace

std::unique_ptr<ResidentTokens> NewDirectTokens(const KvLayout& layout, const HostTier& host) {
  return std::make_unique<DirectTokens>(layout, host);
}

}  // namespace tokenbutler
