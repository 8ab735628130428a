#pragma once

#include <cstddef>

#include "cuda_runtime.h"

namespace cub {

/// Each function returns the size of its temporary when that is null, like CUB's.
struct DeviceScan {
  template <class In, class Out, class Count>
  static cudaError_t ExclusiveSum(void* temporary, std::size_t& bytes, In in, Out out, Count count,
                                  cudaStream_t stream = nullptr) {
    if (temporary == nullptr) {
      bytes = 256;
      return cudaSuccess;
    }
    emulation::enqueue(stream, [=] {
      std::remove_cvref_t<decltype(*out)> sum{};
      for (Count i = 0; i < count; ++i) {
        const auto value = in[i];  // `in` may be `out`
        out[i] = sum;
        sum = static_cast<decltype(sum)>(sum + value);
      }
    });
    return cudaSuccess;
  }
};

}  // namespace cub
