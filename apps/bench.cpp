#include "apps/subcommands.hpp"
#include "lib/core/error.hpp"

namespace gradtool::app {

Subcommand add_bench(CLI::App& root) {
  auto* app = root.add_subcommand("bench", "");
  return {app, []() -> int { throw Error{Fault::unavailable, "bench is not built in"}; }};
}

}  // namespace gradtool::app
