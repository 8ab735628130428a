#include "lib/capture/monitor.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "lib/core/error.hpp"
#include "lib/core/text.hpp"

namespace gradtool {

namespace {
constexpr std::chrono::seconds kBetweenLines{30};
}

Monitor::Monitor(const std::string& label, std::int64_t iterations, bool log_steps)
    : iterations_{iterations}, log_steps_{log_steps}, start_{std::chrono::steady_clock::now()}, last_line_{start_} {
  if (!log_steps && isatty(STDERR_FILENO) == 1) {
    bar_ = std::make_unique<Progress>(label, static_cast<std::uint64_t>(iterations));
  }
}

void Monitor::trained(std::int64_t done, double loss) {
  if (bar_) {
    bar_->update(static_cast<std::uint64_t>(done), fmt::format("loss {:.3f}", loss));
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (log_steps_ || now - last_line_ < kBetweenLines) return;
  last_line_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double left = elapsed / static_cast<double>(done) * static_cast<double>(iterations_ - done);
  fmt::print(stderr, "capture: iteration {} of {}, loss {:.3f}, {} left\n", done, iterations_, loss,
             human_seconds(left));
}

void Monitor::captured(const StepInfo& step) const {
  if (log_steps_) fmt::print(stderr, "captured step {}\n", step.iteration);
}

TrainLog::TrainLog(const std::string& path) : path_{path} {
  if (path.empty()) return;
  file_.open(path);
  file_ << "iteration,epoch,learning_rate,loss,captured\n" << std::flush;
  if (!file_) throw Error{Fault::backend, fmt::format("--train-log '{}' cannot be written", path)};
}

void TrainLog::add(std::int64_t iteration, double epoch, double learning_rate, double loss, bool captured) {
  if (path_.empty()) return;
  file_ << fmt::format("{},{},{},{},{}\n", iteration, epoch, learning_rate, loss, captured ? 1 : 0);
  file_.flush();
  if (!file_) throw Error{Fault::backend, fmt::format("--train-log '{}' cannot be written: is the disk full?", path_)};
}

}  // namespace gradtool
