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

void Progress::update(std::uint64_t done, std::string_view note) {
  const auto now = std::chrono::steady_clock::now();
  const bool soon = terminal_ ? drawn_ && done < total_ && now - last_ < std::chrono::milliseconds{100}
                              : now - last_ < std::chrono::seconds{20};
  if (soon) return;
  last_ = now;
  constexpr std::uint64_t kWidth = 24;
  const auto filled = static_cast<std::size_t>(std::min(kWidth, done * kWidth / total_));
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const std::string left =
      done == 0 || done >= total_
          ? ""
          : human_seconds(elapsed / static_cast<double>(done) * static_cast<double>(total_ - std::min(done, total_))) +
                " left";
  if (!terminal_) {
    std::fputs(fmt::format("{}: {} of {} done{}{}{}{}\n", label_, done, total_, left.empty() ? "" : ", ", left,
                           note.empty() ? "" : ", ", note)
                   .c_str(),
               stderr);
    return;
  }
  drawn_ = true;
  const std::string line = fmt::format("\r\033[K{} [{}{}] {}/{} {} {}", label_, std::string(filled, '='),
                                       std::string(kWidth - filled, ' '), done, total_, left, note);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace gradtool
