#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/quads.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/codecs/per_device.hpp"
#include "lib/codecs/tensor_pieces.hpp"

/// The part that the GPU versions of codecs with a statistic for each tensor share, for .cu files.
namespace gradtool {

namespace cuda {

/// The pieces and tensors of a layout, both in device memory.
struct TensorTable {
  const TensorPiece* piece = nullptr;
  std::size_t pieces = 0;
  const TensorRange* tensor = nullptr;
  std::size_t tensors = 0;
};

/// A warp's share of a piece where a whole piece is not needed, so that few tensors fill a GPU too. The codes of a
/// share, of 1, 2 or 8/5 bits, are whole words.
inline constexpr int kShare = static_cast<int>(format::kSumChunk / 4);
inline constexpr std::size_t kSharesOfPiece = format::kSumChunk / kShare;
static_assert(kShare % 32 == 0 && kShare % 20 == 0);

/// Calls share(first, count, piece, offset) for the shares of all pieces that fall to this warp: `count` elements from
/// `first` on, which is `offset` elements into its piece.
template <class Share>
__device__ void each_share(const TensorTable& table, const Share& share) {
  for (std::size_t s = warp_in_grid(); s < kSharesOfPiece * table.pieces; s += warps_in_grid()) {
    const TensorPiece piece = table.piece[s / kSharesOfPiece];
    const int offset = static_cast<int>(s % kSharesOfPiece) * kShare;
    const int left = static_cast<int>(piece.count) - offset;
    if (left > 0) share(piece.first + offset, left < kShare ? left : kShare, piece, offset);
  }
}

/// Thread blocks of `threads` for a kernel that calls each_share.
inline Grid grid_of_shares(const TensorTable& table, unsigned threads = kThreads) {
  return {blocks_for(kSharesOfPiece * table.pieces, threads / kWarpSize), threads};
}

}  // namespace cuda

/// The GPU side of a codec that is made for one layout and has a statistic for each of its tensors.
class GpuTensorCodec : public GpuCodec {
 public:
  void decode_add(Queue<Space::cuda> queue, ConstBytes payload, float weight, Floats out, Bytes scratch) const final {
    decode_add_all(queue, {&payload, 1}, weight, out, scratch);
  }
  void decode_add_all(Queue<Space::cuda> queue, std::span<const ConstBytes> payloads, float weight, Floats out,
                      Bytes /*scratch*/) const final {
    for (const auto& payload : payloads) expect_length(name_, payload.size(), payload_bytes());
    if (pieces_.pieces().empty()) return;
    cuda::in_batches(payloads, [&](const cuda::Payloads& batch) { decode_all(queue, batch, weight, out.data()); });
  }

 protected:
  /// `words_of` is that of TensorPieces.
  template <class WordsOf>
  GpuTensorCodec(std::string_view name, const Params& params, const Layout& layout, const WordsOf& words_of)
      : GpuCodec{name, params, layout},
        name_{name},
        pieces_{layout, words_of},
        piece_table_{pieces_.pieces()},
        tensor_table_{pieces_.tensors()} {}

  /// Copies the tables to this GPU; for Codec::plan.
  void make_tables(std::size_t n) const {
    expects(n == pieces_.elements(), "a codec of tensors works on the layout that it was made for");
    piece_table_.make();
    tensor_table_.make();
  }
  [[nodiscard]] const TensorPieces& pieces() const { return pieces_; }
  [[nodiscard]] cuda::TensorTable table() const {
    return {piece_table_.get(), piece_table_.size(), tensor_table_.get(), tensor_table_.size()};
  }

  [[nodiscard]] virtual std::size_t payload_bytes() const = 0;
  /// out[i] += weight * decoded for every payload of the batch, in one pass over `out`.
  virtual void decode_all(Queue<Space::cuda> queue, const cuda::Payloads& batch, float weight, float* out) const = 0;

 private:
  std::string_view name_;
  TensorPieces pieces_;
  DeviceTable<TensorPiece> piece_table_;
  DeviceTable<TensorRange> tensor_table_;
};

}  // namespace gradtool
