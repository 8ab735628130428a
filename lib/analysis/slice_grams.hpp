#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "lib/analysis/slicing.hpp"

namespace gradtool {

/// For each slice of a tensor: the inner products of M samples (the mean gradient over workers at M steps), less their
/// mean over the samples. Inner products add up over elements, so parts of a tensor join exactly.
///
/// An open part keeps M doubles and 4 bytes for each of its elements; a closed one M^2 + M doubles for each slice.
class SliceGrams {
 public:
  struct Slice {
    std::vector<double> gram;          ///< [M][M], centred
    std::vector<double> square_norms;  ///< [M], not centred
  };

  /// Elements [first, first + count) of the tensor.
  SliceGrams(const Slicing& slicing, std::size_t samples, std::uint64_t first, std::size_t count);

  /// No elements yet: what was multiplied elsewhere is put, or merged.
  explicit SliceGrams(std::size_t samples) : samples_{samples}, count_{0} {}
  void put(std::size_t slice, Slice products) { slices_[slice] = std::move(products); }

  /// The next sample's elements of this part. Samples beyond M are ignored.
  void add_sample(std::span<const double> values);
  void close();
  void merge(const SliceGrams& other);

  [[nodiscard]] std::size_t samples() const { return samples_; }
  /// By the number of the slice; only those that have elements in the parts seen.
  [[nodiscard]] const std::map<std::size_t, Slice>& slices() const { return slices_; }

 private:
  struct Run {
    std::size_t slice, first, count;  ///< columns [first, first + count) of values_
  };
  std::size_t samples_, count_, next_ = 0;
  std::vector<std::uint32_t> column_;  ///< where each element's column lies, so that a slice's columns are neighbours
  std::vector<Run> runs_;
  std::vector<double> values_;  ///< [M][count]
  std::map<std::size_t, Slice> slices_;
};

}  // namespace gradtool
