#pragma once

#include <cstddef>
#include <memory>

#include "lib/core/arena.hpp"
#include "lib/reduce/own_reducer.hpp"

namespace gradtool {

// Factories of own reducers that have a CUDA version, defined in lib/reduce/cuda/. They exist only in builds with CUDA;
// GT_MAKE_CUDA in registry.hpp keeps them out of others.
std::unique_ptr<Reducer<Space::cuda>> make_cuda_gradiveq(const ReducerSetup<Space::cuda>& setup);
std::unique_ptr<Reducer<Space::cuda>> make_cuda_iwp(const ReducerSetup<Space::cuda>& setup);
std::unique_ptr<Reducer<Space::cuda>> make_cuda_lhc(const ReducerSetup<Space::cuda>& setup);
std::unique_ptr<Reducer<Space::cuda>> make_cuda_oktopk(const ReducerSetup<Space::cuda>& setup);
std::unique_ptr<Reducer<Space::cuda>> make_cuda_powersgd(const ReducerSetup<Space::cuda>& setup);
std::unique_ptr<Reducer<Space::cuda>> make_cuda_qgz_reducer(const ReducerSetup<Space::cuda>& setup);
std::unique_ptr<Reducer<Space::cuda>> make_cuda_sketch(const ReducerSetup<Space::cuda>& setup);
std::unique_ptr<Reducer<Space::cuda>> make_cuda_signsgd_reducer(const ReducerSetup<Space::cuda>& setup);
std::unique_ptr<Reducer<Space::cuda>> make_cuda_thc_reducer(const ReducerSetup<Space::cuda>& setup);

/// What a piece of a workspace takes on a GPU; for those reducers.
constexpr std::size_t padded(std::size_t bytes) {
  return Arena<Space::cuda>::padded_size(bytes);
}

}  // namespace gradtool
