#include "lib/report/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "lib/core/text.hpp"

namespace gradtool {

Progress::Progress(std::string label, std::uint64_t total)
    : label_{std::move(label)},
      total_{std::max<std::uint64_t>(total, 1)},
      terminal_{isatty(STDERR_FILENO) == 1},
      start_{std::chrono::steady_clock::now()},
      last_{start_} {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::update(std::uint64_t done, std::string_view note, std::optional<double> seconds_left) {
  const auto now = std::chrono::steady_clock::now();
  const bool soon = terminal_ ? drawn_ && done < total_ && now - last_ < std::chrono::milliseconds{100}
                              : now - last_ < std::chrono::seconds{20};
  if (soon) return;
  last_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
  if (!seconds_left && share > 0.0 && share < 1.0) seconds_left = elapsed * (1.0 - share) / share;
  if (seconds_left && *seconds_left > 0.0) share = elapsed / (elapsed + *seconds_left);
  const std::string left = seconds_left ? human_seconds(*seconds_left) + " left" : "";
  if (!terminal_) {
    // Steps count when they begin: while time is left, the last one still runs.
    std::string said = done < total_ || left.empty() ? fmt::format("{} of {} done", done, total_) : "";
    for (const std::string_view more : {std::string_view{left}, note}) {
      if (!more.empty()) said += fmt::format("{}{}", said.empty() ? "" : ", ", more);
    }
    std::fputs(fmt::format("{}: {}\n", label_, said).c_str(), stderr);
    return;
  }
  drawn_ = true;
  std::string bar(24, ' ');
  std::fill_n(bar.begin(), static_cast<std::size_t>(share * static_cast<double>(bar.size())), '=');
  const std::string line = fmt::format("\r\033[K{} [{}] {}/{} {} {}", label_, bar, done, total_, left, note);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace gradtool
