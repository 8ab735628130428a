#pragma once

namespace gradtool {

/// After this, Ctrl-C and SIGTERM set a flag instead of ending the process; a second signal ends it at once.
void catch_interrupts();

/// True once the user asked to stop. Long loops look at it between steps, close their files and return.
[[nodiscard]] bool interrupted() noexcept;

}  // namespace gradtool
