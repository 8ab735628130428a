#pragma once

#include <memory>
#include <type_traits>

#include "lib/codecs/reducer.hpp"
#include "lib/codecs/registry.hpp"

/// The factories that descriptors and GpuFactories point to, for types whose constructors take what a factory is given.
namespace gradtool {

/// For CodecDescriptor::make_host and GpuFactories::codec: makes a `Method` from parameters and layout, or from the
/// parameters alone where that is all its constructor takes.
template <Space S, class Method>
[[nodiscard]] std::unique_ptr<Codec<S>> make_method_codec(const Params& params, const Layout& layout) {
  if constexpr (std::is_constructible_v<Method, const Params&, const Layout&>) {
    return std::make_unique<Method>(params, layout);
  } else {
    return std::make_unique<Method>(params);
  }
}

/// For CodecDescriptor::make_host_reducer and GpuFactories::reducer.
template <Space S, class Method>
[[nodiscard]] std::unique_ptr<Reducer<S>> make_method_reducer(const ReducerSetup<S>& setup) {
  return std::make_unique<Method>(setup);
}

}  // namespace gradtool
