#pragma once

#include <vector>

#include "kernels/cuda/tensor_pieces.hpp"
#include "lib/codecs/cuda/device_table.hpp"
#include "lib/codecs/tensor_pieces.hpp"

namespace gradtool {

/// The pieces of TensorPieces on the GPUs that a codec works on.
class CudaTensorPieces {
 public:
  explicit CudaTensorPieces(const TensorPieces& pieces)
      : elements_{pieces.elements()}, words_{pieces.words()}, pieces_{rows_of(pieces)}, tensors_{ranges_of(pieces)} {}

  /// For Codec::plan of `n` elements.
  void make(std::size_t n) const {
    expects(n == elements_, "a codec of tensors works on the layout that it was made for");
    pieces_.make();
    tensors_.make();
  }
  [[nodiscard]] cuda::TensorTable table() const {
    return {pieces_.get(), pieces_.size(), tensors_.get(), tensors_.size()};
  }
  [[nodiscard]] std::size_t pieces() const { return pieces_.size(); }
  [[nodiscard]] std::size_t tensors() const { return tensors_.size(); }
  [[nodiscard]] std::size_t words() const { return words_; }

 private:
  static std::vector<cuda::TensorPiece> rows_of(const TensorPieces& pieces) {
    std::vector<cuda::TensorPiece> rows;
    for (std::size_t i = 0; i < pieces.count(); ++i)
      rows.push_back({pieces[i].first, pieces[i].count, pieces[i].word, pieces[i].group});
    return rows;
  }
  static std::vector<cuda::TensorRange> ranges_of(const TensorPieces& pieces) {
    std::vector<cuda::TensorRange> ranges;
    for (std::size_t t = 0; t < pieces.tensors(); ++t)
      ranges.push_back({pieces.first_piece(t), pieces.first_piece(t + 1), pieces.elements_of(t)});
    return ranges;
  }

  std::size_t elements_, words_;
  DeviceTable<cuda::TensorPiece> pieces_;
  DeviceTable<cuda::TensorRange> tensors_;
};

}  // namespace gradtool
