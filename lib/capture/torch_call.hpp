#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "lib/core/error.hpp"

namespace gradtool {

/// Runs `body`; what LibTorch throws becomes an Error{Fault::backend} with the first line of its message. Nothing of
/// LibTorch's leaves this folder.
template <class F>
decltype(auto) torch_call(F&& body) {
  try {
    return std::forward<F>(body)();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw Error{Fault::backend, "LibTorch: " + text.substr(0, text.find('\n'))};
  }
}

}  // namespace gradtool
