#include "lib/report/color.hpp"

#include <unistd.h>

#include <cstdlib>

namespace gradtool {
namespace {

ColorChoice& chosen() {
  static ColorChoice choice = ColorChoice::automatic;
  return choice;
}

const char* code_of(Ink ink) {
  switch (ink) {
    case Ink::error:
      return "\033[1;31m";
    case Ink::warning:
      return "\033[1;33m";
    case Ink::taken:
      return "\033[1;32m";
  }
  return "";
}

}  // namespace

void choose_color(ColorChoice choice) {
  chosen() = choice;
}

bool color_on(std::FILE* stream) {
  if (chosen() != ColorChoice::automatic) return chosen() == ColorChoice::always;
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  if (no_color != nullptr && *no_color != '\0') return false;
  return isatty(fileno(stream)) == 1 && terminal != nullptr && std::string_view{terminal} != "dumb";
}

std::string inked(std::string_view text, Ink ink, bool on) {
  return on ? std::string{code_of(ink)}.append(text).append("\033[0m") : std::string{text};
}

void print_warning(const std::string& text) {
  std::fputs((inked("warning:", Ink::warning, color_on(stderr)) + " " + text + "\n").c_str(), stderr);
}

}  // namespace gradtool
