#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/kernels/cpu/sketch_select.h"
#include "engine/kernels/sketch_scan.h"
#include "engine/kernels/top_k.h"

namespace tokenbutler {
namespace {

void ScanHead(const SketchScanParams& p, SketchScanParams::Head& head) {
  const int n = std::max(0, head.end - head.begin);
  std::vector<float> scores(n);
  SketchScoresParams::Head scored = {.keys = head.keys,
                                     .queries = head.queries,
                                     .lse = head.lse,
                                     .begin = head.begin,
                                     .end = head.begin + n,
                                     .scores = scores.data()};
  SketchScoresParams params = {.layout = p.layout,
                               .group_size = p.group_size,
                               .softmax_scale = p.softmax_scale,
                               .heads = absl::MakeConstSpan(&scored, 1)};
  SketchScoresPlain(params);

  std::vector<int32_t> positions(n);
  for (int i = 0; i < n; ++i) positions[i] = i;
  const int num_sub_blocks = NumSubBlocks(head.begin, head.end);
  const int num_scored = NumScoredSubBlocks(num_sub_blocks, head.k, p.scan_fraction);
  if (num_scored < num_sub_blocks) {
    std::vector<float> estimates(num_sub_blocks);
    std::vector<int32_t> chosen(num_scored);
    scored.scores = estimates.data();
    SketchEstimatesPlain(params);
    TopKPlain(estimates.data(), num_sub_blocks, num_scored, chosen.data());
    std::erase_if(positions, [&](int32_t i) {
      const int sub_block = (head.begin + i) / 16 - head.begin / 16;
      return !std::binary_search(chosen.begin(), chosen.end(), sub_block);
    });
    for (size_t i = 0; i < positions.size(); ++i) scores[i] = scores[positions[i]];
  }

  std::vector<int32_t> best(positions.size());
  head.num_selected =
      TopKPlain(scores.data(), static_cast<int>(positions.size()), head.k, best.data());
  for (int i = 0; i < head.num_selected; ++i) {
    const int32_t position = head.begin + positions[best[i]];
    head.tokens[i] = head.token_ids == nullptr ? position : head.token_ids[position];
    if (head.scores != nullptr) head.scores[i] = scores[best[i]];
  }
}

}  // namespace

void SketchScanPlain(const SketchScanParams& p) {
  for (SketchScanParams::Head& head : p.heads) ScanHead(p, head);
}

}  // namespace tokenbutler
