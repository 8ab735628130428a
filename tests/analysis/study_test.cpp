#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "feed.hpp"
#include "lib/analysis/gpu.hpp"
#include "lib/analysis/study.hpp"
#include "lib/core/error.hpp"

namespace gradtool::test {
namespace {

/// A gradient file in the temporary folder that holds a capture; removed at the end.
class CaptureFile {
 public:
  explicit CaptureFile(const Capture& capture) {
    path_ = (std::filesystem::temp_directory_path() / ("gradtool_study_" + std::to_string(getpid()) + ".h5")).string();
    std::filesystem::remove(path_);
    const Scope& scope = capture.scope;
    WriterOptions options;
    options.info.workers = static_cast<std::int64_t>(scope.workers);
    options.info.micro_batches = scope.micro_batches;
    options.tensors = scope.tensors;
    options.with_epoch = options.with_learning_rate = options.with_loss = false;
    GradientWriter writer{path_, options};
    for (std::size_t s = 0; s < scope.steps(); ++s) {
      StepInfo step;
      step.iteration = static_cast<std::int64_t>(s);
      writer.begin_step(step);
      for (std::size_t t = 0; t < scope.tensors.size(); ++t) {
        for (std::size_t w = 0; w < scope.workers; ++w) {
          writer.put_gradient(t, w, capture.gradient[t][s][w]);
          if (scope.tensors[t].has_second_moment) writer.put_second_moment(t, w, capture.second_moment[t][s][w]);
        }
      }
      writer.end_step();
    }
    writer.close();
  }
  ~CaptureFile() { std::filesystem::remove(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::unique_ptr<Analysis>> all_analyses(const Scope& scope,
                                                    const std::shared_ptr<AnalysisGpu>& gpu = nullptr) {
  std::vector<std::unique_ptr<Analysis>> analyses;
  analyses.push_back(make_spectrum(scope, gpu));
  analyses.push_back(make_correlation(scope, 128, 0, gpu));
  analyses.push_back(make_variance(scope, gpu));
  return analyses;
}

std::vector<Table> tables_of(std::vector<std::unique_ptr<Analysis>> analyses) {
  std::vector<Table> tables;
  for (const auto& analysis : analyses) {
    for (auto& table : analysis->tables()) tables.push_back(std::move(table));
  }
  return tables;
}

Capture example(std::size_t steps = 5, std::size_t workers = 3) {
  Capture capture{steps, workers, 2};
  const auto noise = normal(1 << 16, 50);
  const auto value = [noise](std::size_t s, std::size_t w, std::size_t i) {
    return noise[(s * 7919 + w * 104729 + i) % noise.size()] + 0.3 * noise[i % noise.size()];
  };
  TensorInfo convolution;
  convolution.shape = {16, 12, 3, 3};
  convolution.kind = "conv";
  convolution.layout = "OIHW";
  capture.add(convolution, value);
  capture.add(vector_of(9000, "moments"), value,
              [](std::size_t s, std::size_t w, std::size_t i) { return 1.0 + static_cast<double>((s + w + i) % 3); });
  capture.add(vector_of(1, "one"), value);
  capture.add(vector_of(300, "bad"),
              [=](std::size_t s, auto, std::size_t i) { return s + 1 == steps && i == 299 ? NAN : 1.0; });
  return capture;
}

TEST(Study, FileEqualsMemoryForAnyThreadsAndPartSize) {
  const Capture capture = example();
  const CaptureFile file{capture};
  const GradientReader reader{file.path()};
  const std::vector<std::size_t> tensors{0, 1, 2, 3};
  std::vector<Table> expected;
  for (const auto& analysis : all_analyses(capture.scope)) {
    for (auto& table : run(*analysis, capture)) expected.push_back(std::move(table));
  }
  for (const std::uint64_t part_bytes : {std::uint64_t{1} << 17, std::uint64_t{32} << 20}) {
    std::vector<Table> first;
    for (const int threads : {1, 2, 5}) {
      auto analyses = all_analyses(capture.scope);
      StudyOptions options;
      options.threads = threads;
      options.part_bytes = part_bytes;
      ASSERT_TRUE(study(reader, tensors, analyses, options));
      auto tables = tables_of(std::move(analyses));
      ASSERT_EQ(tables.size(), expected.size());
      for (std::size_t t = 0; t < tables.size(); ++t) {
        EXPECT_EQ(difference(expected[t], tables[t], 1e-9, 1e-3), "") << threads << " threads";
        if (threads > 1) EXPECT_EQ(difference(first[t], tables[t], 0), "") << threads << " threads";
      }
      if (threads == 1) first = std::move(tables);
    }
  }
}

using MakeAnalyses = std::vector<std::unique_ptr<Analysis>> (*)(const Scope&, const std::shared_ptr<AnalysisGpu>&);

void expect_same_on_gpu(const Capture& capture, const std::shared_ptr<AnalysisGpu>& gpu, MakeAnalyses make) {
  const CaptureFile file{capture};
  const GradientReader reader{file.path()};
  std::vector<std::size_t> tensors(capture.scope.tensors.size());
  std::iota(tensors.begin(), tensors.end(), std::size_t{0});
  std::vector<Table> expected;
  for (const auto& analysis : make(capture.scope, nullptr)) {
    for (auto& table : run(*analysis, capture)) expected.push_back(std::move(table));
  }
  auto analyses = make(capture.scope, gpu);
  StudyOptions options;
  options.gpu = gpu;
  options.part_bytes = std::uint64_t{1} << 19;
  ASSERT_TRUE(study(reader, tensors, analyses, options));
  const auto tables = tables_of(std::move(analyses));
  ASSERT_EQ(tables.size(), expected.size());
  for (std::size_t t = 0; t < tables.size(); ++t) EXPECT_EQ(difference(expected[t], tables[t], 1e-9, 1e-3), "");
}

TEST(Study, AGpuFindsTheSameInParts) {
  std::shared_ptr<AnalysisGpu> gpu;
  try {
    gpu = open_analysis_gpu(0);
  } catch (const Error& error) {
    ASSERT_EQ(error.fault(), Fault::unavailable) << error.what();
    GTEST_SKIP() << error.what();
  }
  expect_same_on_gpu(example(3, 2), gpu, all_analyses);
  // More workers than are compared with each other.
  Capture crowd{2, 150};
  const auto noise = normal(2 * 150 * 40, 51);
  crowd.add(vector_of(40),
            [&](std::size_t s, std::size_t w, std::size_t i) { return noise[(s * 150 + w) * 40 + i] + noise[i]; });
  expect_same_on_gpu(crowd, gpu, [](const Scope& scope, const std::shared_ptr<AnalysisGpu>& where) {
    std::vector<std::unique_ptr<Analysis>> correlation;
    correlation.push_back(make_correlation(scope, 128, 0, where));
    return correlation;
  });
}

TEST(Study, StepsAndTensorsCanBeSelected) {
  const Capture capture = example();
  const CaptureFile file{capture};
  const GradientReader reader{file.path()};
  Scope scope = capture.scope;
  scope.tensors = {capture.scope.tensors[1]};
  scope.first_step = 1;
  scope.last_step = 3;
  auto analyses = all_analyses(scope);
  const std::vector<std::size_t> tensors{1};
  ASSERT_TRUE(study(reader, tensors, analyses, {}));
  const auto tables = tables_of(std::move(analyses));

  Capture expected = capture;
  expected.scope = scope;
  expected.gradient = {{capture.gradient[1].begin() + 1, capture.gradient[1].begin() + 4}};
  expected.second_moment = {{capture.second_moment[1].begin() + 1, capture.second_moment[1].begin() + 4}};
  std::size_t t = 0;
  for (const auto& analysis : all_analyses(scope)) {
    for (const auto& table : run(*analysis, expected)) EXPECT_EQ(difference(table, tables[t++], 1e-9, 1e-3), "");
  }
}

TEST(Study, ProgressCountsToTheEndAndStops) {
  const Capture capture = example();
  const CaptureFile file{capture};
  const GradientReader reader{file.path()};
  const std::vector<std::size_t> tensors{0, 1, 2, 3};
  StudyOptions options;
  std::uint64_t last = 0, whole = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GT(done, last);
    last = done;
    whole = total;
    return true;
  };
  EXPECT_TRUE(study(reader, tensors, all_analyses(capture.scope), options));
  EXPECT_EQ(last, whole);
  EXPECT_EQ(whole, 2 * 5 * 3 * (16 * 12 * 9 + 9000 + 1 + 300));
  options.progress = [](auto, auto) { return false; };
  EXPECT_FALSE(study(reader, tensors, all_analyses(capture.scope), options));
}

}  // namespace
}  // namespace gradtool::test
