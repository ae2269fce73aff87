#include "tools/train/key_directions.h"

#include <cstdint>

namespace tokenbutler {

absl::StatusOr<std::vector<float>> FindKeyDirections(Teacher& teacher, TokenSequences& sequences,
                                                     int num_sequences, int dim) {
  const ModelConfig& config = *teacher.model().config;
  const size_t head_dim = static_cast<size_t>(config.head_dim);
  const int num_heads = config.num_layers * config.num_kv_heads;
  std::vector<double> moments(num_heads * head_dim * head_dim);
  TeacherPass pass;
  for (int i = 0; i < num_sequences; ++i) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, sequences.Training(i));
    const int num_tokens = static_cast<int>(tokens.size());
    RETURN_IF_ERROR(teacher.Run(tokens, {.rows = {num_tokens - 1}}, &pass));
    teacher.pool().ParallelFor(num_heads, [&](int h) {
      AddSecondMoment(teacher.Keys(h / config.num_kv_heads, h % config.num_kv_heads, num_tokens),
                      moments.data() + h * head_dim * head_dim);
    });
  }
  std::vector<float> directions(num_heads * head_dim * dim);
  teacher.pool().ParallelFor(num_heads, [&](int h) {
    PrincipalDirections(moments.data() + h * head_dim * head_dim, config.head_dim, dim,
                        directions.data() + h * head_dim * dim);
  });
  return directions;
}

}  // namespace tokenbutler
