#include "apps/subcommands.hpp"
#include "lib/core/error.hpp"

namespace gradtool::app {

Subcommand add_list(CLI::App& root) {
  auto* app = root.add_subcommand("list", "");
  return {app, []() -> int { throw Error{Fault::unavailable, "list is not built in"}; }};
}

}  // namespace gradtool::app
