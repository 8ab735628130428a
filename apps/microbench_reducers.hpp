#pragma once

#include <string>

#include "apps/microbench_feed.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {

/// Tensors to benchmark on: those of a capture, or the convolutions of ResNet-20 (CIFAR-10) with their norms, again and
/// again while they fit into n elements. What is left is one more tensor, of one dimension.
[[nodiscard]] Layout benchmark_layout(const std::string& file, std::size_t n);

struct ReducerBenchmark {
  const CodecSpec& spec;
  const Feed& feed;
  const Layout& layout;
  TaskPool& pool;
  double copy_rate;      ///< bytes a second of memcpy
  std::size_t settling;  ///< steps before the first that is measured
};

/// <codec>/encode and <codec>/decode of a method that only exists between ranks: its phases of a reduce on one rank.
/// For gradiveq also the same products by BLAS alone, gradiveq_products_by_blas/encode and /decode.
void register_reducer(const ReducerBenchmark& benchmark);

}  // namespace gradtool
