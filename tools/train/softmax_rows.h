#pragma once

namespace tokenbutler {

// The two halves of the distillation loss for one row of logits, in float32 but for the sums that
// are returned. A head at a position attends to tokens [0, limit); the loss is over [begin, end)
// of them, those that a predictor chooses from.

// The teacher: replaces its logits x [size] by the probabilities p of the softmax over [0, limit)
// in [begin, end), and by 0 elsewhere.
struct TeacherRow {
  double mass = 0;         // m = sum p over [begin, end)
  double neg_entropy = 0;  // sum p log(p / m) over [begin, end)
};
// REQUIRES: 0 <= begin, end <= limit <= size, limit >= 1.
TeacherRow SoftmaxOfTeacher(int begin, int end, int limit, int size, float* x);

// The student: its logits y [size] against the teacher's probabilities,
//   loss = -sum p log_softmax(y) = m lse(y) - sum p y,  over [begin, end),
// and replaces y by the gradient of `scale` * loss, which is scale (m softmax(y) - p), 0 outside of
// [begin, end). The divergence from the teacher is this loss + TeacherRow::neg_entropy.
double StudentLoss(const float* p, double mass, int begin, int end, int size, float scale,
                   float* y);

}  // namespace tokenbutler
