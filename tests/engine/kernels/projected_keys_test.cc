#include "engine/kernels/projected_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "tests/engine/kernels/kernel_testing.h"

namespace tokenbutler {
namespace {

constexpr int kHeadDim = 64;

struct Shape {
  int dim = 16;
  int block_size = 64;
  ProjectedFormat format = ProjectedFormat::kInt8;
  ProjectedLayout layout() const {
    return {.dim = dim, .block_size = block_size, .format = format};
  }
};

// The records of one KV head in several runs, as state blocks hold them, and a group's queries.
class Records {
 public:
  Records(const Shape& shape, int num_blocks, int group_size, unsigned seed)
      : layout_(shape.layout()), num_blocks_(num_blocks), group_size_(group_size) {
    const int dim = layout_.dim;
    projection_ = RandomFloats(static_cast<size_t>(kHeadDim) * dim, seed, 0.125f);
    queries_ = RandomFloats(static_cast<size_t>(group_size) * dim, seed + 1);
    offsets_ = RandomFloats(static_cast<size_t>(group_size), seed + 2);
    std::vector<float> keys = RandomFloats(num_tokens() * kHeadDim, seed + 3);
    // Channels of different size and mean, as real keys have them.
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] = keys[i] * (1.0f + static_cast<float>(i % 5)) + static_cast<float>(i % 7);
    }
    keys_ = Narrow(keys, DType::kBF16);
    stride_ = layout_.record_bytes() + 64;
    for (int first = 0; first < num_blocks; first += kBlocksPerRun) {
      runs_.push_back(*Buffer::Allocate(128 + kBlocksPerRun * stride_, MemoryKind::kHeap));
      bases_.push_back(runs_.back().data());
    }
    std::vector<float> workspace(static_cast<size_t>(layout_.block_size) * dim);
    for (int b = 0; b < num_blocks; ++b) {
      ProjectKeysPlain(KeysOf(b, const_cast<std::byte*>(Table().record(b)), workspace.data()));
    }
  }

  size_t num_tokens() const { return static_cast<size_t>(num_blocks_) * layout_.block_size; }
  const ProjectedLayout& layout() const { return layout_; }
  ProjectedRecords Table() const {
    return {
        .runs = bases_.data(), .offset = 128, .blocks_per_run = kBlocksPerRun, .stride = stride_};
  }
  ProjectKeysParams KeysOf(int block, std::byte* record, float* workspace) const {
    const size_t row_bytes = kHeadDim * sizeof(BF16);
    return {.layout = layout_,
            .keys = keys_.data() + static_cast<size_t>(block) * layout_.block_size * row_bytes,
            .dtype = DType::kBF16,
            .key_stride_bytes = row_bytes,
            .head_dim = kHeadDim,
            .projection = projection_.data(),
            .record = record,
            .workspace = workspace};
  }
  ProjectedScoresParams::Head HeadOf(int begin, int end) const {
    return {.keys = Table(),
            .queries = queries_.data(),
            .offsets = offsets_.data(),
            .begin = begin,
            .end = end};
  }
  ProjectedScoresParams ParamsOf(absl::Span<const ProjectedScoresParams::Head> heads,
                                 GroupPooling pooling) const {
    return {.layout = layout_,
            .group_size = group_size_,
            .scale = kScale,
            .pooling = pooling,
            .heads = heads};
  }
  // How far rounding the weights to int8 may move a logit, at most.
  float Tolerance() const {
    if (layout_.format == ProjectedFormat::kBf16) return 2e-4f;
    float most = 0;
    for (int b = 0; b < num_blocks_; ++b) {
      const auto* scales = reinterpret_cast<const float*>(Table().record(b));
      for (size_t i = 0; i < queries_.size(); ++i) {
        most = std::max(most, std::abs(kScale * queries_[i] * scales[i % layout_.dim]));
      }
    }
    return 2e-4f + most / 127 / 2 * 128 * static_cast<float>(layout_.dim);
  }

  static constexpr float kScale = 0.25f;
  static constexpr int kBlocksPerRun = 3;

 private:
  const ProjectedLayout layout_;
  const int num_blocks_, group_size_;
  std::vector<float> projection_, queries_, offsets_;
  std::vector<std::byte> keys_;
  size_t stride_ = 0;
  std::vector<Buffer> runs_;
  std::vector<const std::byte*> bases_;
};

double RootMeanSquareError(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

class ProjectedKeysTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Targets, ProjectedKeysTest, testing::ValuesIn(RunnableTargets()),
                         TargetTestName);

TEST_P(ProjectedKeysTest, ProjectsAndStoresWithinHalfAStep) {
  for (const DType dtype : kKvDTypes) {
    for (const Shape shape :
         {Shape{16, 64}, Shape{32, 128}, Shape{12, 32}, Shape{16, 64, ProjectedFormat::kBf16}}) {
      const ProjectedLayout layout = shape.layout();
      ASSERT_TRUE(layout.IsValid());
      const std::vector<float> p = RandomFloats(static_cast<size_t>(kHeadDim) * layout.dim, 1);
      const NarrowKeys keys = NarrowRows(
          RandomFloats(static_cast<size_t>(layout.block_size) * kHeadDim, 2), kHeadDim, dtype);
      Buffer record = *Buffer::Allocate(layout.record_bytes(), MemoryKind::kHeap);
      std::vector<float> workspace(static_cast<size_t>(layout.block_size) * layout.dim);
      ProjectKeys({.layout = layout,
                   .keys = keys.bytes.data(),
                   .dtype = dtype,
                   .key_stride_bytes = kHeadDim * DTypeBytes(dtype),
                   .key_scales = keys.scales(),
                   .head_dim = kHeadDim,
                   .projection = p.data(),
                   .record = record.data(),
                   .workspace = workspace.data()});
      for (int t = 0; t < layout.block_size; ++t) {
        for (int c = 0; c < layout.dim; ++c) {
          double exact = 0;
          for (int i = 0; i < kHeadDim; ++i) {
            exact += double{keys.exact[static_cast<size_t>(t) * kHeadDim + i]} *
                     p[static_cast<size_t>(i) * layout.dim + c];
          }
          const double step = shape.format == ProjectedFormat::kBf16
                                  ? std::abs(exact) / 128
                                  : reinterpret_cast<const float*>(record.data())[c];
          EXPECT_NEAR(ProjectedValue(layout, record.data(), t, c), exact, 0.51 * step + 1e-4);
        }
      }
    }
  }
}

TEST_P(ProjectedKeysTest, KeepsConstantAndDamagedChannelsApart) {
  const ProjectedLayout layout{.dim = 16, .block_size = 16};
  std::vector<float> keys(16 * 16, 3.0f), identity(16 * 16, 0.0f), workspace(16 * 16);
  for (int i = 0; i < 16; ++i) identity[i * 16 + i] = 1;
  identity[5 * 16 + 5] = std::numeric_limits<float>::infinity();
  Buffer record = *Buffer::Allocate(layout.record_bytes(), MemoryKind::kHeap);
  ProjectKeys({.layout = layout,
               .keys = keys.data(),
               .dtype = DType::kF32,
               .key_stride_bytes = 16 * sizeof(float),
               .head_dim = 16,
               .projection = identity.data(),
               .record = record.data(),
               .workspace = workspace.data()});
  EXPECT_EQ(ProjectedValue(layout, record.data(), 7, 0), 3.0f);
  EXPECT_EQ(ProjectedValue(layout, record.data(), 7, 5), 0.0f);
}

TEST_P(ProjectedKeysTest, ScoresLikeThePlainSpecification) {
  for (const GroupPooling pooling : {GroupPooling::kMax, GroupPooling::kMeanExp}) {
    for (const Shape shape :
         {Shape{16, 64}, Shape{32, 128}, Shape{48, 32}, Shape{12, 32}, Shape{16, 256},
          Shape{16, 64, ProjectedFormat::kBf16}, Shape{32, 32, ProjectedFormat::kBf16}}) {
      for (int group = 1; group <= 8; ++group) {
        SCOPED_TRACE(testing::Message() << "pooling " << static_cast<int>(pooling) << " dim "
                                        << shape.dim << " group " << group);
        const Records records(shape, 7, group, 10 + group);
        const int last = static_cast<int>(records.num_tokens());
        for (const auto& [begin, end] :
             {std::pair{0, last}, std::pair{5, last - 3}, std::pair{shape.block_size + 7, last / 2},
              std::pair{17, 18}, std::pair{9, 9}}) {
          std::vector<float> fast(end - begin), plain(end - begin);
          ProjectedScoresParams::Head head = records.HeadOf(begin, end);
          head.scores = plain.data();
          ProjectedScoresPlain(records.ParamsOf({&head, 1}, pooling));
          head.scores = fast.data();
          ComputePool pool(1);
          ProjectedScores(records.ParamsOf({&head, 1}, pooling), pool);
          const float tolerance = records.Tolerance();
          for (size_t i = 0; i < fast.size(); ++i) ASSERT_NEAR(fast[i], plain[i], tolerance) << i;
          if (!fast.empty()) {
            EXPECT_LE(RootMeanSquareError(fast, plain), tolerance / 4);
          }
        }
      }
    }
  }
}

TEST_P(ProjectedKeysTest, LogSumExpLikeThePlainSpecification) {
  for (const Shape shape : {Shape{16, 64}, Shape{32, 32, ProjectedFormat::kBf16}}) {
    for (const int group : {1, 3, 7}) {
      const Records records(shape, 9, group, 70 + group);
      std::vector<float> fast(3 * group), plain(3 * group);
      std::vector<ProjectedScoresParams::Head> heads;
      for (const auto& [begin, end] :
           {std::pair{0, 9 * shape.block_size}, std::pair{3, 50}, std::pair{8, 8}}) {
        heads.push_back(records.HeadOf(begin, end));
      }
      for (int i = 0; i < 3; ++i) heads[i].lse = plain.data() + i * group;
      ProjectedLogSumExpPlain(records.ParamsOf(heads, GroupPooling::kMax));
      for (int i = 0; i < 3; ++i) heads[i].lse = fast.data() + i * group;
      ProjectedScoresParams params = records.ParamsOf(heads, GroupPooling::kMax);
      std::vector<float> workspace(ProjectedWorkspaceFloats(params));
      params.workspace = workspace.data();
      ComputePool pool(1);
      ProjectedLogSumExp(params, pool);
      for (int i = 0; i < 2 * group; ++i) EXPECT_NEAR(fast[i], plain[i], records.Tolerance());
      for (int i = 2 * group; i < 3 * group; ++i) {
        EXPECT_EQ(fast[i], -std::numeric_limits<float>::infinity());
      }
    }
  }
}

TEST_P(ProjectedKeysTest, ThreadsChangeNothing) {
  const Shape shape{16, 64};
  const Records records(shape, 300, 3, 5);
  std::vector<std::vector<float>> results;
  for (const int num_threads : {1, 3}) {
    ComputePool pool(num_threads);
    std::vector<float> out(2 * records.num_tokens() + 6);
    std::vector<ProjectedScoresParams::Head> heads(
        2, records.HeadOf(0, static_cast<int>(records.num_tokens())));
    heads[1].begin = 100;
    for (int i = 0; i < 2; ++i) {
      heads[i].scores = out.data() + i * records.num_tokens();
      heads[i].lse = out.data() + 2 * records.num_tokens() + 3 * i;
    }
    ProjectedScoresParams params = records.ParamsOf(heads, GroupPooling::kMax);
    std::vector<float> workspace(ProjectedWorkspaceFloats(params));
    params.workspace = workspace.data();
    ProjectedScores(params, pool);
    ProjectedLogSumExp(params, pool);
    results.push_back(std::move(out));
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace tokenbutler
