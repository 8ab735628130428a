#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// Another source, whose values are kept in memory once they have been read: a bench reads every tensor of every step
/// many times, for each codec, and a file has to be read and inflated each time. A tensor of one step and worker is
/// read whole when any part of it is first asked for, and kept as float32 while all that is kept takes `most_bytes` or
/// fewer. Nothing is ever given up for something else: whoever goes round and round through more than fits still finds
/// as much of it as does fit. The rest is read from the source each time. Not thread-safe.
class CachedGradients final : public GradientSource {
 public:
  CachedGradients(std::unique_ptr<GradientSource> source, std::uint64_t most_bytes);

  [[nodiscard]] const std::string& path() const override { return source_->path(); }
  [[nodiscard]] const FileInfo& info() const override { return source_->info(); }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const override { return source_->tensors(); }
  [[nodiscard]] const std::vector<StepInfo>& steps() const override { return source_->steps(); }

  void read_gradient_part(std::size_t tensor, std::size_t step, std::size_t worker, std::uint64_t first,
                          std::span<float> out) const override;
  void read_second_moment_part(std::size_t tensor, std::size_t step, std::size_t worker, std::uint64_t first,
                               std::span<float> out) const override;
  void read_weight_part(std::size_t tensor, std::size_t step, std::uint64_t first, std::span<float> out) const override;

 private:
  using Values = std::vector<float>;  ///< of a whole tensor; empty until they are kept

  /// The place of a tensor's values in a vector that has one for each tensor, step and worker.
  [[nodiscard]] std::size_t place(std::size_t tensor, std::size_t step, std::size_t worker) const;
  /// Copies a part of `values` to `out`; before, `read(first, out)` fills them where they are not there and fit.
  template <class Read>
  void serve(Values& values, std::size_t tensor, std::uint64_t first, std::span<float> out, Read read) const;

  std::unique_ptr<GradientSource> source_;
  mutable std::uint64_t left_;  ///< bytes that may still be kept
  mutable std::vector<Values> gradients_, second_moments_, weights_;
};

}  // namespace gradtool
