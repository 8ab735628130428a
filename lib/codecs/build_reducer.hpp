#pragma once

#include "lib/codecs/generic_reducers.hpp"
#include "lib/codecs/shard_reducers.hpp"
#include "lib/codecs/uncompressed_reducer.hpp"

namespace gradtool::detail {

[[noreturn]] void throw_no_cuda(std::string_view codec);

/// Body of make_reducer for either space; included where a space's factory is instantiated.
template <Space S>
std::unique_ptr<Reducer<S>> build_reducer(const CodecSpec& spec, std::shared_ptr<const Codec<S>> codec, Scheme scheme,
                                          const Layout& layout, int ranks, Queue<S> queue, Collective op) {
  const CodecDescriptor& descriptor = *spec.descriptor;
  const std::size_t n = layout.elements;
  scheme = resolve(scheme, spec, op);
  if (spec.gates(4 * n)) return std::make_unique<BelowGate<DenseReducer<S>>>(n, ranks, op);
  if (scheme == Scheme::own) {
    const ReducerSetup<S> setup{spec, std::move(codec), layout, ranks, queue};
    if constexpr (S == Space::host) {
      return descriptor.make_host_reducer(setup);
    } else {
      if (descriptor.gpu.reducer == nullptr) throw_no_cuda(descriptor.name);
      return descriptor.gpu.reducer(setup);
    }
  }
  if (descriptor.aggregation == Aggregation::none) return std::make_unique<SilentReducer<S>>(op);
  const bool coded = op != Collective::all_to_all && (scheme == Scheme::alltoall || scheme == Scheme::hop);
  if (descriptor.name == "none" && !coded) return std::make_unique<DenseReducer<S>>(n, ranks, op);
  const Feedback keeps = spec.feedback();
  switch (op) {
    case Collective::all_reduce:
      break;
    case Collective::reduce_scatter:
      if (scheme == Scheme::sum)
        return std::make_unique<SumReduceScatter<S>>(std::move(codec), descriptor.sum_dtype, n, ranks, keeps, queue);
      break;
    case Collective::all_gather:
      return std::make_unique<ShardGather<S>>(std::move(codec), n, ranks, keeps, queue);
    case Collective::all_to_all:
      return std::make_unique<ShardExchange<S>>(std::move(codec), n, ranks, queue);
  }
  if (scheme == Scheme::alltoall) {
    const ShardCut cut{n, ranks, op == Collective::all_reduce ? spec.segment : 1};
    return std::make_unique<AllToAllReducer<S>>(std::move(codec), cut, keeps, queue, op, spec.own_exact);
  }
  if (scheme == Scheme::hop) return std::make_unique<HopReducer<S>>(std::move(codec), n, ranks, op);
  if (scheme == Scheme::gather) return std::make_unique<GatherReducer<S>>(std::move(codec), n, ranks, keeps, queue);
  return std::make_unique<SumReducer<S>>(std::move(codec), descriptor.sum_dtype, n, ranks, keeps, queue);
}

}  // namespace gradtool::detail
