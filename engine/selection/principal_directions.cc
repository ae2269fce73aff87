#include "engine/selection/principal_directions.h"

#include <algorithm>

#include "Eigen/Eigenvalues"
#include "engine/selection/kv_rows.h"

namespace tokenbutler {
namespace {

// Sums of a block in float32, of the blocks in float64.
Eigen::MatrixXd SecondMoment(const KeyRows& rows) {
  const KvLayout& layout = *rows.layout;
  const int d = layout.head_dim;
  Eigen::MatrixXd moment = Eigen::MatrixXd::Zero(d, d);
  Eigen::MatrixXf keys;
  for (int first = 0; first < rows.num_rows; first += layout.block_size) {
    const std::byte* base = rows.blocks[first / layout.block_size];
    const int n = std::min(layout.block_size, rows.num_rows - first);
    keys.resize(d, n);
    for (int t = 0; t < n; ++t) LoadRow(base + t * layout.row_bytes(), layout, keys.col(t).data());
    Eigen::MatrixXf products = Eigen::MatrixXf::Zero(d, d);
    products.selfadjointView<Eigen::Lower>().rankUpdate(keys);
    moment += products.cast<double>();
  }
  return moment;
}

}  // namespace

void PrincipalDirections(const KeyRows& rows, int dim, float* out) {
  const int d = rows.layout->head_dim;
  const Eigen::MatrixXd moment = SecondMoment(rows);
  Eigen::MatrixXd directions = Eigen::MatrixXd::Identity(d, d);
  if (moment.allFinite() && moment.trace() > 0) {
    // Reads the lower triangle; eigenvalues rise.
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(moment);
    if (solver.info() == Eigen::Success) directions = solver.eigenvectors().rowwise().reverse();
  }
  for (int c = 0; c < dim; ++c) {
    Eigen::Index largest = 0;
    directions.col(c).cwiseAbs().maxCoeff(&largest);
    const double sign = directions(largest, c) < 0 ? -1 : 1;
    for (int i = 0; i < d; ++i) {
      out[static_cast<size_t>(i) * dim + c] = static_cast<float>(sign * directions(i, c));
    }
  }
}

}  // namespace tokenbutler
