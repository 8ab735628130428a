#include "lib/core/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace gradtool {
namespace {

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}
/// The second byte of U+0080 to U+009F, of which U+009B commands a terminal as ESC [ does.
bool is_c1(char c) {
  return static_cast<unsigned char>(c) >= 0x80 && static_cast<unsigned char>(c) < 0xa0;
}
/// Characters that a terminal does not show, or by which it shows others in another place: line separators, directions
/// and what has no width.
bool is_unseen(std::string_view character) {
  constexpr std::string_view kSeparators = "\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069";
  constexpr std::string_view kNoWidth = "\u200b\u200e\u200f\u2060\ufeff";
  return character.size() == 3 &&
         (kSeparators.find(character) != std::string_view::npos || kNoWidth.find(character) != std::string_view::npos);
}
bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U;
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || length > text.size() - i) return false;
    std::uint32_t code = length == 1 ? lead : lead & (0x7fU >> length);
    for (std::size_t k = 1; k < length; ++k) {
      if (!is_continuation(text[i + k])) return false;
      code = code << 6U | (static_cast<unsigned char>(text[i + k]) & 0x3fU);
    }
    const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    if (overlong || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return false;
    i += length;
  }
  return true;
}

bool has_control(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_control(text[i]) || (text.substr(i, 1) == "\xc2" && i + 1 < text.size() && is_c1(text[i + 1]))) return true;
  }
  return false;
}

std::string as_utf8(std::string_view text) {
  if (is_utf8(text)) return std::string{text};
  std::string out;
  while (!text.empty()) {
    std::size_t length = 1;
    while (length <= 4 && !is_utf8(text.substr(0, length))) ++length;
    if (length <= 4) {
      out += text.substr(0, length);
    } else {
      out += "\ufffd";
      length = 1;
    }
    text.remove_prefix(std::min(length, text.size()));
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    std::size_t length = 1;
    if (static_cast<unsigned char>(text[0]) >= 0x80) {
      while (length < 4 && length < text.size() && !is_utf8(text.substr(0, length))) ++length;
      if (!is_utf8(text.substr(0, length))) length = 1;
    }
    const std::string_view character = text.substr(0, length);
    const bool shown = is_utf8(character) && !has_control(character) && !is_unseen(character);
    for (const char c : character) {
      if (shown)
        out += c;
      else
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace gradtool
