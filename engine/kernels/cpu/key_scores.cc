#include "engine/kernels/key_scores.h"

namespace tokenbutler {

size_t KeyScoresWorkspaceFloats(int) { return 16; }

void KeyScores(const KeyScoresParams& p, ComputePool&) { KeyScoresPlain(p); }

}  // namespace tokenbutler
