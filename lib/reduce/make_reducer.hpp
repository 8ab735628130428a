#pragma once

#include "lib/reduce/gather_reducer.hpp"
#include "lib/reduce/hop_reducer.hpp"
#include "lib/reduce/sum_reducer.hpp"

namespace gradtool::detail {

/// Body of make_reducer for either space; included where a space's factory is instantiated.
template <Space S>
std::unique_ptr<Reducer<S>> build_reducer(const CodecSpec& spec, std::shared_ptr<const Codec<S>> codec, Scheme scheme,
                                          std::size_t n, int ranks, Queue<S> queue) {
  const CodecDescriptor& descriptor = *spec.descriptor;
  scheme = resolve(scheme, spec);
  if (descriptor.aggregation == Aggregation::none) return std::make_unique<SilentReducer<S>>();
  if (scheme == Scheme::hop) return std::make_unique<HopReducer<S>>(std::move(codec), n, ranks);
  if (scheme == Scheme::gather) {
    return std::make_unique<GatherReducer<S>>(std::move(codec), n, ranks, spec.error_feedback, queue);
  }
  if (descriptor.name == "none") return std::make_unique<DenseReducer<S>>(n);
  return std::make_unique<SumReducer<S>>(std::move(codec), descriptor.sum_dtype, n, ranks, spec.error_feedback, queue);
}

}  // namespace gradtool::detail
