#pragma once

#include <string>

#include "absl/types/span.h"
#include "base/status.h"
#include "engine/models/architecture.h"

namespace tokenbutler {

// Each defined in its own file.
const Architecture& LlamaArchitecture();
const Architecture& Qwen2Architecture();
const Architecture& MistralArchitecture();

// Every architecture that can be loaded.
absl::Span<const Architecture* const> Architectures();

// The architecture that config.json names in `model_type` and `architectures`. UNIMPLEMENTED naming
// what was found and what is known; INVALID_ARGUMENT when the file names none.
absl::StatusOr<const Architecture*> FindHfArchitecture(const ConfigFields& fields);

// The same for GGUF's `general.architecture`.
absl::StatusOr<const Architecture*> FindGgufArchitecture(const ConfigFields& fields);

// Reads and validates the whole configuration.
absl::StatusOr<ModelConfig> ReadHfConfig(const Architecture& architecture,
                                         const ConfigFields& fields);
absl::StatusOr<ModelConfig> ReadGgufConfig(const Architecture& architecture,
                                           const ConfigFields& fields);

}  // namespace tokenbutler
