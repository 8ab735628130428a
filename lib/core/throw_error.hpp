#pragma once

#include <fmt/format.h>

#include <type_traits>
#include <utility>

#include "lib/core/error.hpp"

namespace gradtool {

/// A format string, and the place where it stands.
template <class... Args>
struct ErrorText {
  template <class Text>
  consteval ErrorText(const Text& text, const char* in_file = __builtin_FILE(), int in_line = __builtin_LINE())
      : format{text}, file{in_file}, line{in_line} {}

  fmt::format_string<Args...> format;
  const char* file;
  int line;
};

/// Throws an Error whose sentence is the formatted text.
template <class... Args>
[[noreturn]] void throw_error(Fault fault, ErrorText<std::type_identity_t<Args>...> text, Args&&... args) {
  throw Error{fault, fmt::format(text.format, std::forward<Args>(args)...), text.file, text.line};
}

}  // namespace gradtool
