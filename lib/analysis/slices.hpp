#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/float_bits.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool::format {

/// Which elements of a range of a tensor belong to one slice. In every `period` elements of the tensor's order, the
/// slice has the `width` elements that begin at `start`. Column c of the range is its c-th element of the slice.
struct SliceColumns {
  std::uint64_t start = 0, width = 1, period = 1;
  std::uint64_t first = 0;   ///< element of the tensor at which the range begins
  std::uint64_t before = 0;  ///< elements of the slice in front of the range
  std::uint64_t count = 0;   ///< columns in the range

  /// The number of elements of the slice among the first `end` elements of the tensor.
  [[nodiscard]] GT_HD std::uint64_t elements_below(std::uint64_t end) const {
    const std::uint64_t rest = end % period;
    const std::uint64_t part = rest <= start ? 0 : rest - start < width ? rest - start : width;
    return end / period * width + part;
  }
  /// The position of column c in the range.
  [[nodiscard]] GT_HD std::uint64_t offset(std::uint64_t c) const {
    const std::uint64_t j = before + c;
    return j / width * period + start + j % width - first;
  }
};

}  // namespace gradtool::format

namespace gradtool {

/// How a tensor is cut into slices of K elements, whose correlations are studied as in GradiVeQ (Yu et al. 2018).
///
/// A convolution whose layout is OI followed by spatial axes (OIHW) is taken in the order HWIO, in which the spatial
/// tap changes slowest, and cut every `taps` taps: K = taps x O x I. The slice of an element then depends on its tap
/// alone, so the tensor need not be transposed. Every other tensor is cut every K elements of its contiguous order,
/// with K = max(4096, n / 16). In both cases the last slice may be shorter.
class Slicing {
 public:
  /// `taps` 0 means one row of the kernel, for example 3 for a 3 x 3 kernel.
  Slicing(const TensorInfo& tensor, std::size_t taps);

  [[nodiscard]] bool transposed() const { return transposed_; }
  [[nodiscard]] std::size_t slices() const { return slices_; }
  [[nodiscard]] std::uint64_t slice_elements() const {
    return slice_elements_;
  }  ///< K, the size of all slices but perhaps the last
  [[nodiscard]] std::uint64_t elements_of(std::size_t slice) const;
  /// Which elements of [first, first + count) of the contiguous order belong to `slice`.
  [[nodiscard]] format::SliceColumns columns(std::size_t slice, std::uint64_t first, std::uint64_t count) const;
  /// The slice of element `index` of the contiguous order.
  [[nodiscard]] std::size_t slice_of(std::uint64_t index) const {
    return static_cast<std::size_t>(transposed_ ? index % all_taps_ / taps_ : index / slice_elements_);
  }

 private:
  bool transposed_;
  std::uint64_t elements_, all_taps_ = 1, taps_ = 1, slice_elements_;
  std::size_t slices_;
};

/// A row-major matrix view: `rows` rows of `columns` values, `stride` values apart.
struct Rows {
  const double* data = nullptr;
  std::size_t rows = 0, columns = 0, stride = 0;
  [[nodiscard]] const double* row(std::size_t i) const { return data + i * stride; }
};

/// gram[i * rows + j] += <row i, row j> for every i and j (both triangles). gram.size() == rows^2.
///
/// The order of the additions depends on the shape alone. A threaded BLAS would not guarantee that, and its threads
/// would compete with ours. O(rows^2 columns / 2).
void add_gram(Rows matrix, std::span<double> gram);

/// The inner product <a, b>. The order of the additions depends on n alone.
[[nodiscard]] double dot(const double* a, const double* b, std::size_t n);

/// The inner products of M samples within each slice of a tensor. The samples are the mean gradients over the workers
/// at M steps, less their mean over the samples. Inner products are sums over elements, so the parts of a tensor can be
/// added.
///
/// An open part keeps M doubles and 4 bytes for each of its elements; a closed part keeps M^2 + M doubles for each
/// slice.
class SliceGrams {
 public:
  struct Slice {
    std::vector<double> gram;          ///< [M][M]: inner products of the samples less their mean
    std::vector<double> square_norms;  ///< [M]: squared norms of the samples themselves
  };

  /// For elements [first, first + count) of the tensor.
  SliceGrams(const Slicing& slicing, std::size_t samples, std::uint64_t first, std::size_t count);

  /// Without elements, for inner products that were computed elsewhere and are added by put() or merge().
  explicit SliceGrams(std::size_t samples) : samples_{samples}, count_{0} {}
  void put(std::size_t slice, Slice products) { slices_[slice] = std::move(products); }

  /// The next sample's elements of this part. Samples beyond M are ignored.
  void add_sample(std::span<const double> values);
  void close();
  void merge(const SliceGrams& other);

  [[nodiscard]] std::size_t samples() const { return samples_; }
  /// The slices that have elements in the parts seen, by their number.
  [[nodiscard]] const std::map<std::size_t, Slice>& slices() const { return slices_; }

 private:
  struct Run {
    std::size_t slice, first, count;  ///< columns [first, first + count) of values_
  };
  std::size_t samples_, count_, next_ = 0;
  std::vector<std::uint32_t> column_;  ///< the column of values_ for each element; a slice has neighbouring columns
  std::vector<Run> runs_;
  std::vector<double> values_;  ///< [M][count]
  std::map<std::size_t, Slice> slices_;
};

}  // namespace gradtool
