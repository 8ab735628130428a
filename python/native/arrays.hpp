#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "lib/codecs/codec.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/core/error.hpp"
#include "lib/core/state.hpp"
#include "lib/core/view.hpp"
#if defined(GT_PYTHON_EMULATED_CUDA)
#include "kernels/cuda/runtime.hpp"
#endif

namespace gradtool {
enum class Scheme : std::uint8_t;
}

// How arrays of Python become views. An array is NumPy's, or anything that speaks DLPack; nothing is copied. The Python
// side of the package sees to it that arrays have one dimension, are contiguous and hold float32 or bytes.
namespace gradtool::python {

namespace nb = nanobind;

/// The emulated GPU has the host's memory (emulation/README.md): its arrays are those of the CPU, so that tests can try
/// the GPU's side.
#if defined(GT_PYTHON_EMULATED_CUDA)
inline constexpr bool kEmulatedCuda = true;
#else
inline constexpr bool kEmulatedCuda = false;
#endif
/// The end of a call waits for the emulated GPU, because PyTorch reads the host's memory without asking a stream.
struct EmulatedCallEnds {
  EmulatedCallEnds() = default;
  EmulatedCallEnds(const EmulatedCallEnds&) = delete;
  EmulatedCallEnds& operator=(const EmulatedCallEnds&) = delete;
  ~EmulatedCallEnds() { wait(); }
  static void wait() {
#if defined(GT_PYTHON_EMULATED_CUDA)
    cuda::synchronize_device();
#endif
  }
};
template <Space S>
using Device = std::conditional_t<S == Space::host || kEmulatedCuda, nb::device::cpu, nb::device::cuda>;
template <class T, Space S>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, Device<S>>;

template <class T, Space S>
[[nodiscard]] View<T, S> view_of(const Array<T, S>& array) {
  return {array.data(), array.size()};
}
/// Bytes of Python are unsigned integers.
template <Space S>
[[nodiscard]] View<std::byte, S> bytes_of(const Array<std::uint8_t, S>& array) {
  return {reinterpret_cast<std::byte*>(array.data()), array.size()};
}
template <Space S>
[[nodiscard]] View<const std::byte, S> bytes_of(const Array<const std::uint8_t, S>& array) {
  return {reinterpret_cast<const std::byte*>(array.data()), array.size()};
}
/// Empty where the array is None.
template <Space S>
[[nodiscard]] View<const float, S> optional_view(const std::optional<Array<const float, S>>& array) {
  return array ? view_of<const float, S>(*array) : View<const float, S>{};
}

/// All that `object` keeps between steps, for `restore_saved` of a new one that is made alike. Throws
/// Fault::unavailable for what a GPU keeps.
template <class Object>
[[nodiscard]] nb::bytes saved_state(Object& object) {
  const auto saved = save_state(object);
  return nb::bytes{saved.data(), saved.size()};
}
/// Throws Fault::data where `saved` is of an object that was made otherwise; this one is then half restored.
template <class Object>
void restore_saved(Object& object, const nb::bytes& saved) {
  restore_state(object, std::as_bytes(std::span{saved.c_str(), saved.size()}));
}

/// Work on the host runs in `pool`; on a GPU, `stream` is the cudaStream_t as an integer, 0 for the default stream.
template <Space S>
[[nodiscard]] Queue<S> queue_of(TaskPool* pool, std::uintptr_t stream) {
  if constexpr (S == Space::host) {
    static_cast<void>(stream);
    return {pool};
  } else {
    static_cast<void>(pool);
    return {reinterpret_cast<::CUstream_st*>(stream)};
  }
}

/// Adds the classes of codecs (codec.cpp), of a rank's reducers (reducer.cpp) and of those of a training in one process
/// (workers.cpp) to the module.
void add_codecs(nb::module_& module);
void add_reducers(nb::module_& module);
void add_workers(nb::module_& module);

/// The way to reduce of that name, as bench's --reduce. Throws Fault::usage.
[[nodiscard]] Scheme scheme_named(const std::string& name);

/// One tensor of a unit, as Python names it: (name, shape, kind, layout, depth), the last as in TensorShape.
using TensorTuple = std::tuple<std::string, std::vector<std::int64_t>, std::string, std::string, double>;
[[nodiscard]] Layout layout_of(const std::vector<TensorTuple>& tensors);

/// The context of one encode besides the values.
[[nodiscard]] inline EncodeContext context_of(std::uint64_t seed, std::uint32_t step, std::uint32_t rank,
                                              std::uint32_t tensor, std::int64_t iteration, double ratio) {
  return {.key = {.seed = seed, .step = step, .rank = rank, .tensor = tensor},
          .iteration = iteration,
          .learning_rate_ratio = ratio};
}

}  // namespace gradtool::python
