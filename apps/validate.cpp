#include "apps/subcommands.hpp"
#include "lib/core/error.hpp"

namespace gradtool::app {

Subcommand add_validate(CLI::App& root) {
  auto* app = root.add_subcommand("validate", "");
  return {app, []() -> int { throw Error{Fault::unavailable, "validate is not built in"}; }};
}

}  // namespace gradtool::app
