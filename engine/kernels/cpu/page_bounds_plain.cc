#include <algorithm>
#include <limits>

#include "engine/kernels/cpu/element.h"
#include "engine/kernels/page_bounds.h"

namespace tokenbutler {

void PageBoundsPlain(const PageBoundsParams& p) {
  const size_t head_dim = static_cast<size_t>(p.head_dim);
  for (size_t page = 0; page < static_cast<size_t>(p.num_pages); ++page) {
    for (size_t c = 0; c < head_dim; ++c) {
      float max = -std::numeric_limits<float>::infinity(), min = -max;
      for (size_t t = page * kPageTokens; t < (page + 1) * kPageTokens; ++t) {
        float key = LoadElement(p.keys, p.dtype, t * head_dim + c);
        if (p.key_scales != nullptr) key *= p.key_scales[t * KvLayout::kScalesPerToken];
        max = std::max(max, key);
        min = std::min(min, key);
      }
      const DType dtype = PageBoundsDType(p.dtype);
      StoreElement(p.bounds, dtype, 2 * page * head_dim + c, max);
      StoreElement(p.bounds, dtype, (2 * page + 1) * head_dim + c, min);
    }
  }
}

void PageScoresPlain(const PageScoresParams& p) {
  for (const PageScoresParams::Head& head : p.heads) {
    for (int page = 0; page < p.num_pages; ++page) {
      const int record = page / p.pages_per_record;
      const std::byte* bounds = head.runs[record / p.records_per_run] + head.offset +
                                static_cast<size_t>(record % p.records_per_run) * p.record_bytes;
      const size_t first = size_t{2} * (page % p.pages_per_record) * p.head_dim;
      double best = -std::numeric_limits<double>::infinity();
      for (int h = 0; h < p.group_size; ++h) {
        double score = 0;
        for (int c = 0; c < p.head_dim; ++c) {
          const double q = head.queries[static_cast<size_t>(h) * p.head_dim + c];
          const double max = LoadElement(bounds, p.dtype, first + c);
          const double min = LoadElement(bounds, p.dtype, first + p.head_dim + c);
          score += std::max(q * max, q * min);
        }
        best = std::max(best, score);
      }
      head.scores[page] = static_cast<float>(best);
    }
  }
}

}  // namespace tokenbutler
