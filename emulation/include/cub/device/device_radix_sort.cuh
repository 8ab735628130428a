#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <vector>

#include "cuda_runtime.h"

namespace cub {

/// Each function returns the size of its temporary when that is null, like CUB's.
struct DeviceRadixSort {
  template <class Key, class Count>
  static cudaError_t SortKeysDescending(void* temporary, std::size_t& bytes, const Key* in, Key* out, Count count,
                                        int /*first_bit*/ = 0, int /*last_bit*/ = 8 * static_cast<int>(sizeof(Key)),
                                        cudaStream_t stream = nullptr) {
    if (temporary == nullptr) {
      bytes = 256;
      return cudaSuccess;
    }
    emulation::enqueue(stream, [=] {
      std::copy(in, in + count, out);
      std::sort(out, out + count, std::greater<Key>{});
    });
    return cudaSuccess;
  }
  /// Stable, ascending by the bits from first_bit up to last_bit.
  template <class Key, class Value, class Count>
  static cudaError_t SortPairs(void* temporary, std::size_t& bytes, const Key* keys_in, Key* keys_out,
                               const Value* values_in, Value* values_out, Count count, int first_bit = 0,
                               int last_bit = 8 * static_cast<int>(sizeof(Key)), cudaStream_t stream = nullptr) {
    if (temporary == nullptr) {
      bytes = 256;
      return cudaSuccess;
    }
    emulation::enqueue(stream, [=] {
      std::vector<Count> order(static_cast<std::size_t>(count));
      std::iota(order.begin(), order.end(), Count{0});
      const int unused = 8 * static_cast<int>(sizeof(Key)) - last_bit;
      const auto looked_at = [&](Count i) {
        return static_cast<Key>(static_cast<Key>(keys_in[i] << unused) >> unused >> first_bit);
      };
      std::stable_sort(order.begin(), order.end(), [&](Count a, Count b) { return looked_at(a) < looked_at(b); });
      for (std::size_t i = 0; i < order.size(); ++i) {
        keys_out[i] = keys_in[order[i]];
        values_out[i] = values_in[order[i]];
      }
    });
    return cudaSuccess;
  }
};

}  // namespace cub
