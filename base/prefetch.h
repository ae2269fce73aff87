#pragma once

namespace tokenbutler {

// Begin to load the cache line that holds `p`, which may be any address: they never fault, and
// wait for nothing. Inlined by force: g++ takes a function that only fetches for one without
// effects and drops its calls.

// Into the level-2 cache: for what streams or jumps, long before its use. A core can wait for many
// more lines on their way there (docs/adr/0015-prefetch-into-the-second-cache.md).
[[gnu::always_inline]] inline void PrefetchToL2(const void* p) { __builtin_prefetch(p, 0, 2); }

// Into the level-1 cache: for what is used soon.
[[gnu::always_inline]] inline void PrefetchToL1(const void* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace tokenbutler
