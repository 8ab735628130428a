#include "lib/reduce/qgz.hpp"

#include "lib/codecs/qgz_codec.hpp"
#include "lib/reduce/cuda_reducers.hpp"

namespace gradtool {

extern constinit const OwnReducer qgz_reducer{
    .codec = "qgz",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<QgzReducer<Space::host>>(setup, make_qgz_codec);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_qgz_reducer),
};

}  // namespace gradtool
