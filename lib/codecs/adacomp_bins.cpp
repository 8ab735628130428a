#include "lib/codecs/adacomp_bins.hpp"

#include <algorithm>

#include "kernels/host/marks.hpp"

namespace gradtool {

AdaCompBins::AdaCompBins(const Params& params, const Layout& layout) {
  const auto conv = static_cast<std::size_t>(params.integer("conv"));
  const auto other = static_cast<std::size_t>(params.integer("other"));
  for (const auto& shape : layout.tensors) {
    if (shape.elements == 0) continue;
    Tensor tensor{.first = shape.first, .elements = shape.elements, .bin = shape.kind == "conv" ? conv : other};
    tensor.bins = (tensor.elements + tensor.bin - 1) / tensor.bin;
    tensor.first_piece = pieces.size();
    const std::size_t together = std::max<std::size_t>(1, host::kPiece / tensor.bin);
    for (std::size_t b = 0; b < tensor.bins; b += together) {
      const std::size_t bins = std::min(together, tensor.bins - b);
      const std::size_t at = b * tensor.bin;
      pieces.push_back({.tensor = tensors.size(),
                        .first = tensor.first + at,
                        .count = std::min(bins * tensor.bin, tensor.elements - at),
                        .first_bin = b,
                        .bins = bins,
                        .word = words});
      words += bins * ((tensor.bin + 31) / 32);
    }
    tensor.last_piece = pieces.size();
    tensors.push_back(tensor);
  }
}

}  // namespace gradtool
