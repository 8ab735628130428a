#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace gradtool {

/// The choices of --color.
enum class ColorChoice : std::uint8_t {
  automatic,  ///< on a terminal that is not dumb, unless the environment has NO_COLOR (https://no-color.org)
  always,
  never,
};

/// Decides for the whole process; ColorChoice::automatic until it is called.
void choose_color(ColorChoice choice);

/// Whether what is written to `stream` (stdout or stderr) may have colour.
[[nodiscard]] bool color_on(std::FILE* stream);

/// The meanings of colours: the same ink always means the same.
enum class Ink : std::uint8_t {
  error,    ///< red: it failed
  warning,  ///< yellow: worth knowing
  taken,    ///< green: what the advice takes
};

/// How what people read is written.
enum class Style : std::uint8_t {
  plain,     ///< lines of at most 80 characters
  colored,   ///< the same on a terminal with colour: green what the advice takes, red and yellow what is not ok
  markdown,  ///< for a pull request
};

/// `text` between the control sequences of a terminal (ECMA-48) when `on`, else as it is. Its width on the screen stays
/// the same, its length does not: pad and wrap before.
[[nodiscard]] std::string inked(std::string_view text, Ink ink, bool on);

/// "warning: TEXT" on a line of standard error.
void print_warning(const std::string& text);

}  // namespace gradtool
