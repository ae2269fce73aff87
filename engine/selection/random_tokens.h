#pragma once

#include <memory>

#include "engine/selection/scanning_selector.h"

namespace tokenbutler {

// Chooses tokens at random, the same ones for the same position, layer and KV head: the floor of
// every comparison.
std::unique_ptr<KeyScanner> NewRandomScanner();

}  // namespace tokenbutler
