#include "lib/core/interrupt.hpp"

#include <csignal>

namespace gradtool {
namespace {
volatile std::sig_atomic_t requested = 0;

void on_signal(int signal) {
  requested = 1;
  std::signal(signal, SIG_DFL);  // a second signal ends the process at once
}
}  // namespace

void catch_interrupts() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

bool interrupted() noexcept {
  return requested != 0;
}

void stop_if_interrupted() {
  if (interrupted()) throw Interrupted{};
}

}  // namespace gradtool
