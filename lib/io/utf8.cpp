#include "lib/io/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace gradtool {
namespace {

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
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
  return std::any_of(text.begin(), text.end(), is_control);
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
  for (const char c : text) {
    if (is_control(c)) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace gradtool
