#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>
#include <string>
#include <vector>

#include "lib/capture/trainer.hpp"
#include "tests/capture/test_data.hpp"

namespace gradtool::test {

/// Skips, by name, in a build without LibTorch.
class TrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      require_trainer();
    } catch (const Error& error) {
      ASSERT_EQ(error.fault(), Fault::unavailable) << error.what();
      GTEST_SKIP() << error.what();
    }
  }

  static TrainerOptions options(const std::string& model, std::size_t workers, std::size_t batch_size,
                                std::size_t micro_batches = 1) {
    TrainerOptions options;
    options.model = model;
    options.workers = workers;
    options.batch_size = batch_size;
    options.micro_batches = micro_batches;
    return options;
  }

  /// Positions 0, 1, ... count - 1.
  static std::vector<std::uint32_t> first_samples(std::size_t count) {
    std::vector<std::uint32_t> samples(count);
    std::iota(samples.begin(), samples.end(), std::uint32_t{0});
    return samples;
  }

  static std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }
};

/// |a - b| / |b|
inline double relative_distance(std::span<const float> a, std::span<const double> b) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace gradtool::test
