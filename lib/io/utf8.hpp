#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gradtool {

/// True when `text` is well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
[[nodiscard]] bool is_utf8(std::string_view text);

/// True when `text` holds a C0 control character or DEL. Such characters must not reach a terminal or break the line of
/// a message.
[[nodiscard]] bool has_control(std::string_view text);

/// `text` with U+FFFD for each byte that is no part of well-formed UTF-8.
[[nodiscard]] std::string as_utf8(std::string_view text);

/// `text` with control characters written as \xNN.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace gradtool
