#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gradtool {

/// True when `text` is well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
[[nodiscard]] bool is_utf8(std::string_view text);

/// True when `text` holds a control character: C0, DEL, or C1 in UTF-8. They must not reach a terminal or break the
/// line of a message.
[[nodiscard]] bool has_control(std::string_view text);

/// `text` with U+FFFD for each byte that is no part of well-formed UTF-8.
[[nodiscard]] std::string as_utf8(std::string_view text);

/// `text` with control characters, bytes that are no UTF-8, and characters that nobody sees or that turn the line round
/// (line separators, directions, no width) written as \xNN.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace gradtool
