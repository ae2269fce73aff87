#include "engine/selection/principal_directions.h"

#include <algorithm>
#include <vector>

#include "Eigen/Eigenvalues"
#include "engine/kernels/kv_row.h"

namespace tokenbutler {

// Sums of a block in float32, of the blocks in float64.
void AddSecondMoment(const FirstKeys& first_keys, double* sum) {
  const KvLayout& layout = *first_keys.layout;
  const int d = layout.head_dim;
  Eigen::Map<Eigen::MatrixXd> moment(sum, d, d);
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
}

void PrincipalDirections(const double* sum, int head_dim, int dim, float* out) {
  const int d = head_dim;
  const Eigen::Map<const Eigen::MatrixXd> moment(sum, d, d);
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

void PrincipalDirections(const FirstKeys& keys, int dim, float* out) {
  const size_t d = static_cast<size_t>(keys.layout->head_dim);
  std::vector<double> moment(d * d);
  AddSecondMoment(keys, moment.data());
  PrincipalDirections(moment.data(), keys.layout->head_dim, dim, out);
}

}  // namespace tokenbutler
