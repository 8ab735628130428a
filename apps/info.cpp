#include "apps/subcommands.hpp"
#include "lib/core/error.hpp"

namespace gradtool::app {

Subcommand add_info(CLI::App& root) {
  auto* app = root.add_subcommand("info", "");
  return {app, []() -> int { throw Error{Fault::unavailable, "info is not built in"}; }};
}

}  // namespace gradtool::app
