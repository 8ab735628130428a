#include "lib/reduce/qgz.hpp"

#include "lib/codecs/qgz_codec.hpp"
#include "lib/reduce/cuda_reducers.hpp"

namespace gradtool {

std::unique_ptr<Reducer<Space::cuda>> make_cuda_qgz_reducer(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<QgzReducer<Space::cuda>>(setup, make_cuda_qgz_codec);
}

}  // namespace gradtool
