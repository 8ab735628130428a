#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// Another source without the steps whose gradients overflowed on any worker (/steps/overflow). The training threw such
/// a step away, and because nearly every tensor of it holds infinite values, leaving out tensors that are not finite
/// would leave nothing.
class UsableSteps final : public GradientSource {
 public:
  /// Throws Fault::data when every step overflowed.
  explicit UsableSteps(std::unique_ptr<GradientSource> source);

  [[nodiscard]] std::size_t left_out() const { return source_->steps().size() - steps_.size(); }

  [[nodiscard]] const std::string& path() const override { return source_->path(); }
  [[nodiscard]] const FileInfo& info() const override { return source_->info(); }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const override { return source_->tensors(); }
  [[nodiscard]] const std::vector<StepInfo>& steps() const override { return steps_; }

  void read_gradient_part(std::size_t tensor, std::size_t step, std::size_t worker, std::uint64_t first,
                          std::span<float> out) const override {
    source_->read_gradient_part(tensor, places_[step], worker, first, out);
  }
  void read_second_moment_part(std::size_t tensor, std::size_t step, std::size_t worker, std::uint64_t first,
                               std::span<float> out) const override {
    source_->read_second_moment_part(tensor, places_[step], worker, first, out);
  }
  void read_weight_part(std::size_t tensor, std::size_t step, std::uint64_t first,
                        std::span<float> out) const override {
    source_->read_weight_part(tensor, places_[step], first, out);
  }

 private:
  std::unique_ptr<GradientSource> source_;
  std::vector<StepInfo> steps_;
  std::vector<std::size_t> places_;  ///< of each step, its position in the source
};

/// "run.h5: 2 steps are left out because the gradients overflowed (/steps/overflow)", for people.
[[nodiscard]] std::string left_out_warning(const std::string& path, std::size_t left_out);

}  // namespace gradtool
