#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// The sizes of a sweep in bytes of float32 values, smallest first, as `--synthetic` has them: "16MB" is one size,
/// "1MB:1GB:x4" grows by a factor, "1MB:10MB:+1MB" by steps. Units as in parse_bytes(). A size is rounded down to whole
/// elements. Throws Fault::usage for text that is none of these, sizes below 4 bytes or above 2^40, a first size above
/// the last, a factor of 1 or less, a step below 4 bytes, and for more than 1000 sizes.
[[nodiscard]] std::vector<std::uint64_t> parse_sizes(std::string_view text);

/// "size:4MB", the name under which a size stands where granularities stand: in units of 10^3 or 2^10 where it is a
/// whole number of them, else in bytes.
[[nodiscard]] std::string size_name(std::uint64_t bytes);

/// Gradients that nobody captured, to time codecs at any size: one matrix, as nearly square as its size allows, on each
/// of some workers in each of kSteps steps. Values are Laplace distributed with a standard deviation of 1e-3, which is
/// about as heavy-tailed as gradients are; half of their variance is common to all workers, and nothing is common to
/// two steps. Weights and second moments are there, too. The same on every machine and for every size: a smaller tensor
/// is the beginning of a larger one.
class SyntheticGradients final : public GradientSource {
 public:
  static constexpr std::size_t kSteps = 2;

  /// One source for each size. They share their memory: the largest size once, and a little more.
  [[nodiscard]] static std::vector<std::unique_ptr<GradientSource>> make(const std::vector<std::uint64_t>& sizes,
                                                                         int workers);

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] const FileInfo& info() const override { return info_; }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  [[nodiscard]] const std::vector<StepInfo>& steps() const override { return steps_; }

  void read(const ArrayPart& part, std::span<float> out) const override;

 private:
  SyntheticGradients(std::uint64_t elements, int workers, std::shared_ptr<const std::vector<float>> values);

  /// Element `first` of the stream of that number. Streams are the same values, each begun a little later, so that
  /// elements at one place are independent.
  [[nodiscard]] const float* stream(std::size_t number, std::uint64_t first) const;

  std::string path_ = "synthetic";
  FileInfo info_;
  std::vector<TensorInfo> tensors_;
  std::vector<StepInfo> steps_;
  std::shared_ptr<const std::vector<float>> values_;
};

}  // namespace gradtool
