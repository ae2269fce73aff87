#pragma once

#include "tools/train/student.h"

namespace tokenbutler {

// Kind tokenbutler, the published predictor (arXiv 2503.07518): per producer layer a small MLP,
// LayerNorm -> Linear -> SiLU -> Linear, whose output is the projected queries of the next layers
// (struct PredictorProducer). Its matrices begin as LibTorch's layers do, uniform within
// 1 / sqrt(inputs).
// As NewStudent, whose checks have been made.
std::unique_ptr<Student> NewProducerStudent(const StudentOptions& options,
                                            const SelectionResources& model, ComputePool& pool,
                                            absl::Span<const float> directions, uint64_t seed);

}  // namespace tokenbutler
