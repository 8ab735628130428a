#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/marks.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/arena.hpp"
#include "lib/methods/adacomp/format.hpp"

/// The part that the CPU and the GPU version of codec adacomp share: how a bucket is cut, and the state of a rank.
namespace gradtool {

/// The tensors of a bucket in bins, and the bins in pieces of work.
struct AdaCompBins {
  static constexpr std::size_t kLongest = 1 << 14;        ///< elements of a bin: an entry has 14 bits of index
  static constexpr std::size_t kMostBins = host::kPiece;  ///< bins of a piece

  AdaCompBins(const Params& params, const Layout& layout) {
    const auto conv = static_cast<std::size_t>(params.integer("conv"));
    const auto other = static_cast<std::size_t>(params.integer("other"));
    for (const auto& shape : layout.tensors) {
      if (shape.elements == 0) continue;
      format::AdaCompTensor tensor{
          .first = shape.first, .elements = shape.elements, .bin = shape.kind == "conv" ? conv : other};
      tensor.bins = (tensor.elements + tensor.bin - 1) / tensor.bin;
      tensor.first_piece = pieces.size();
      const std::size_t bins_per_piece = std::max<std::size_t>(1, host::kPiece / tensor.bin);
      for (std::size_t b = 0; b < tensor.bins; b += bins_per_piece) {
        const std::size_t bins = std::min(bins_per_piece, tensor.bins - b);
        const std::size_t first = b * tensor.bin;
        pieces.push_back({.tensor = tensors.size(),
                          .first = tensor.first + first,
                          .count = std::min(bins * tensor.bin, tensor.elements - first),
                          .first_bin = b,
                          .bins = bins,
                          .mark_word = mark_words});
        mark_words += bins * ((tensor.bin + 31) / 32);
      }
      tensor.last_piece = pieces.size();
      tensors.push_back(tensor);
    }
  }

  /// Bytes of the payload's size and of the scales, which start it.
  [[nodiscard]] std::size_t header_bytes() const { return 8 + 4 * tensors.size(); }
  [[nodiscard]] std::size_t payload_bound() const {
    std::size_t bytes = header_bytes();
    for (const auto& tensor : tensors) bytes += tensor.bytes(tensor.elements);
    return bytes;
  }

  std::vector<format::AdaCompTensor> tensors;
  std::vector<format::AdaCompPiece> pieces;
  std::size_t mark_words = 0;  ///< words of marks, a bit for each element; every bin starts a new word
};

/// The residue of one rank. `AdaCompCodec` has step(queue, gradient, residue, payload, scratch).
template <Space S, class AdaCompCodec>
class AdaCompEncoder final : public Encoder<S> {
 public:
  AdaCompEncoder(const AdaCompCodec& codec, std::size_t n, Queue<S> queue)
      : codec_{codec}, arena_{4 * n}, residue_{arena_.template take<float>(n)} {
    AdaCompEncoder::reset(queue);
  }

  void encode(Queue<S> queue, View<const float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> payload, View<std::byte, S> scratch) override {
    codec_.step(queue, gradient, residue_.data(), payload, scratch);
  }
  void reset(Queue<S> queue) override { fill_zero(queue, residue_); }
  void visit_state(StateVisitor& visitor) override { visitor.values("residue", residue_); }
  [[nodiscard]] View<const float, S> residual() const override { return residue_; }

 private:
  const AdaCompCodec& codec_;
  Arena<S> arena_;
  View<float, S> residue_;
};

}  // namespace gradtool
