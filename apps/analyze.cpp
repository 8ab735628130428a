#include "apps/subcommands.hpp"
#include "lib/core/error.hpp"

namespace gradtool::app {

Subcommand add_analyze(CLI::App& root) {
  auto* app = root.add_subcommand("analyze", "");
  return {app, []() -> int { throw Error{Fault::unavailable, "analyze is not built in"}; }};
}

}  // namespace gradtool::app
