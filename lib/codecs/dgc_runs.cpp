#include "lib/codecs/dgc_runs.hpp"

#include <algorithm>

namespace gradtool {

DgcRuns::DgcRuns(const Layout& layout, bool dense_vectors) {
  for (const auto& tensor : layout.tensors) {
    const bool whole = dense_vectors && tensor.shape.size() < 2 && layout.tensors.size() > 1;
    auto& runs = whole ? dense_runs : sparse_runs;
    if (!runs.empty() && runs.back().first + runs.back().count == tensor.first)
      runs.back().count += tensor.elements;
    else
      runs.push_back({tensor.first, tensor.elements});
  }
  for (const Run& run : sparse_runs) {
    for (std::size_t at = 0; at < run.count; at += host::kPiece) {
      const std::size_t count = std::min(host::kPiece, run.count - at);
      pieces.push_back({run.first + at, count, blocks, 0});
      blocks += (count + 31) / 32;
    }
    sparse += run.count;
  }
  for (const Run& run : dense_runs) dense += run.count;
}

}  // namespace gradtool
