#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/slice_columns.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// How GradiVeQ cuts a tensor into slices of K elements whose correlations are studied (Yu et al. 2018).
///
/// A convolution stored OI followed by spatial axes (OIHW) is read in the order HWIO, spatial taps slowest, and cut
/// every `taps` taps: K = taps x O x I. Which slice an element belongs to then depends on its tap alone, so the
/// transposition never has to be carried out. Every other tensor is cut every K elements of its contiguous order, K =
/// max(4096, n / 16). In both the last slice may be short.
class Slicing {
 public:
  /// `taps` 0: one row of the kernel, e.g. 3 for 3x3.
  Slicing(const TensorInfo& tensor, std::size_t taps);

  [[nodiscard]] bool transposed() const { return transposed_; }
  [[nodiscard]] std::size_t slices() const { return slices_; }
  [[nodiscard]] std::uint64_t slice_elements() const { return slice_elements_; }  ///< K, of a slice that is not short
  [[nodiscard]] std::uint64_t elements_of(std::size_t slice) const;
  /// The elements of a slice among [first, first + count) of the contiguous order.
  [[nodiscard]] law::SliceColumns columns(std::size_t slice, std::uint64_t first, std::uint64_t count) const;
  /// The slice of element `index` of the contiguous order.
  [[nodiscard]] std::size_t slice_of(std::uint64_t index) const {
    return static_cast<std::size_t>(transposed_ ? index % all_taps_ / taps_ : index / slice_elements_);
  }

 private:
  bool transposed_;
  std::uint64_t elements_, all_taps_ = 1, taps_ = 1, slice_elements_;
  std::size_t slices_;
};

}  // namespace gradtool
