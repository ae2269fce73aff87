#pragma once

#include <memory>

#include "engine/selection/scanning_selector.h"

namespace tokenbutler {

// The oracle: scores by the layer's true logits. Reads every key, so it is as slow as dense
// attention; it is what the other policies approximate.
std::unique_ptr<KeyScanner> NewExactScanner();

}  // namespace tokenbutler
