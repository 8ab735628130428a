#pragma once

#include "lib/reduce/gather_reducer.hpp"
#include "lib/reduce/hop_reducer.hpp"
#include "lib/reduce/own_reducer.hpp"
#include "lib/reduce/sum_reducer.hpp"

namespace gradtool::detail {

[[noreturn]] void throw_no_cuda(std::string_view codec);

/// Body of make_reducer for either space; included where a space's factory is instantiated.
template <Space S>
std::unique_ptr<Reducer<S>> build_reducer(const CodecSpec& spec, std::shared_ptr<const Codec<S>> codec, Scheme scheme,
                                          const Layout& layout, int ranks, Queue<S> queue) {
  const CodecDescriptor& descriptor = *spec.descriptor;
  const std::size_t n = layout.elements;
  scheme = resolve(scheme, spec);
  if (scheme == Scheme::own) {
    const OwnReducer& own = find_own_reducer(descriptor.name);
    const ReducerSetup<S> setup{spec, std::move(codec), layout, ranks, queue};
    if constexpr (S == Space::host) {
      return own.make_host(setup);
    } else {
      if (own.make_cuda == nullptr) throw_no_cuda(descriptor.name);
      return own.make_cuda(setup);
    }
  }
  if (descriptor.aggregation == Aggregation::none) return std::make_unique<SilentReducer<S>>();
  if (scheme == Scheme::hop) return std::make_unique<HopReducer<S>>(std::move(codec), n, ranks);
  if (scheme == Scheme::gather) {
    return std::make_unique<GatherReducer<S>>(std::move(codec), n, ranks, spec.error_feedback, queue);
  }
  if (descriptor.name == "none") return std::make_unique<DenseReducer<S>>(n);
  return std::make_unique<SumReducer<S>>(std::move(codec), descriptor.sum_dtype, n, ranks, spec.error_feedback, queue);
}

}  // namespace gradtool::detail
