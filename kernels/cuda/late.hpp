#pragma once

#include <cuda_runtime.h>

/// CUDA's large libraries, loaded when something of theirs is first used. cuBLAS and cuSOLVER are several hundred MB
/// that every `gradtool info` would map otherwise.
namespace gradtool::cuda {

/// A function of a shared library, by its names. A library is loaded once, from the loader's paths or the toolkit that
/// gradtool was built with, and never unloaded. Throws Fault::unavailable when library or function is not there.
[[nodiscard]] void* late_function(const char* library, const char* function);

}  // namespace gradtool::cuda

#define GT_TEXT_OF(text) #text
#define GT_TEXT(text) GT_TEXT_OF(text)
#if defined(GT_EMULATED_CUDA)
#define GT_LATE(library, function) function
#else
// The function with the type that its header declares; looked up at the first call from this place.
#define GT_LATE(library, function)                                                                             \
  ([] {                                                                                                        \
    static const auto late = reinterpret_cast<decltype(&function)>(late_function(library, GT_TEXT(function))); \
    return late;                                                                                               \
  }())
#endif
