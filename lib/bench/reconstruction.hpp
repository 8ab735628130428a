#pragma once

#include <span>
#include <vector>

#include "lib/bench/bench.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// Writes what a codec and its collective produced as a gradient file with one worker, so that anybody can check the
/// error columns with other tools. Units arrive step by step in any order within a step.
class Reconstruction {
 public:
  Reconstruction(const BenchOptions& options, const GradientReader& source, std::vector<std::size_t> tensors,
                 const CodecSpec& spec);
  void put(std::size_t step, const Unit& unit, std::span<const float> result);
  void close();

 private:
  const GradientReader& source_;
  std::vector<std::size_t> tensors_;  ///< positions in the source, in the order of the output
  GradientWriter writer_;
  std::size_t put_ = 0;  ///< tensors of the current step
};

}  // namespace gradtool
