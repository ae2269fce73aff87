#include "engine/selection/principal_directions.h"

#include <algorithm>

#include "Eigen/Eigenvalues"
#include "engine/kernels/kv_row.h"

namespace tokenbutler {
namespace {

// Sums of a block in float32, of the blocks in float64.
Eigen::MatrixXd SecondMoment(const FirstKeys& first_keys) {
  const KvLayout& layout = *first_keys.layout;
  const int d = layout.head_dim;
  Eigen::MatrixXd moment = Eigen::MatrixXd::Zero(d, d);
  Eigen::MatrixXf keys;
  for (int first = 0; first < first_keys.num_rows; first += layout.block_size) {
    const std::byte* block = first_keys.blocks[first / layout.block_size];
    const int n = std::min(layout.block_size, first_keys.num_rows - first);
    keys.resize(d, n);  // a column per token, one after the other
    LoadKvRows(KeyRowsOf(layout, block, first_keys.layer, first_keys.kv_head), layout, n,
               keys.data());
    Eigen::MatrixXf products = Eigen::MatrixXf::Zero(d, d);
    products.selfadjointView<Eigen::Lower>().rankUpdate(keys);
    moment += products.cast<double>();
  }
  return moment;
}

}  // namespace

void PrincipalDirections(const FirstKeys& keys, int dim, float* out) {
  const int d = keys.layout->head_dim;
  const Eigen::MatrixXd moment = SecondMoment(keys);
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
