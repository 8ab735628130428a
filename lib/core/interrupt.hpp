#pragma once

#include <stdexcept>

namespace gradtool {

/// After this, Ctrl-C and SIGTERM set a flag instead of ending the process; a second signal ends it at once.
void catch_interrupts();

/// True once the user asked to stop. Long loops look at it between steps, close their files and return.
[[nodiscard]] bool interrupted() noexcept;

/// The user stopped a command that had nothing to close.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error{"interrupted"} {}
};

/// Throws Interrupted once the user asked to stop; for long loops that only read.
void stop_if_interrupted();

}  // namespace gradtool
