#include "apps/subcommands.hpp"
#include "lib/core/error.hpp"

namespace gradtool::app {

Subcommand add_capture(CLI::App& root) {
  auto* app = root.add_subcommand("capture", "");
  return {app, []() -> int { throw Error{Fault::unavailable, "capture is not built in"}; }};
}

}  // namespace gradtool::app
