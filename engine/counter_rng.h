#pragma once

#include <array>
#include <cstdint>

namespace tokenbutler {

// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): a
// bijection of a 128-bit counter under a 64-bit key. It has no state, so what a sequence draws
// depends on its own seed and position only, never on what runs beside it or on a preemption in
// between.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, uint64_t key);

// The uniform number in [0, 1), 53 bits, of completion `index` at its `step`-th sampled token.
double UniformAt(uint64_t seed, uint32_t index, uint64_t step);

}  // namespace tokenbutler
