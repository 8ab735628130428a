#pragma once

#include <cstddef>
#include <string_view>

#include "lib/core/error.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// A payload view as an array of T. Payloads start 256-byte aligned and every section is a multiple of 4 bytes.
template <class T>
[[nodiscard]] T* section(HostView<std::byte> payload, std::size_t offset = 0) {
  return reinterpret_cast<T*>(payload.data() + offset);
}
template <class T>
[[nodiscard]] const T* section(HostView<const std::byte> payload, std::size_t offset = 0) {
  return reinterpret_cast<const T*>(payload.data() + offset);
}

/// For payloads whose length follows from n and the parameters. Throws Fault::data.
void expect_length(std::string_view codec, std::size_t bytes, std::size_t expected);

/// For views of payloads that state their own size, on CUDA, where the view may be longer than the payload: at least
/// what every payload has, at most the bound. Throws Fault::data.
void expect_room(std::string_view codec, std::size_t bytes, std::size_t least, std::size_t bound);

}  // namespace gradtool
