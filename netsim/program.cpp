#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "apps/options.hpp"
#include "gradtool_version.hpp"
#include "lib/core/error.hpp"
#include "lib/core/interrupt.hpp"
#include "netsim/command_line.hpp"

namespace gradtool::netsim {
namespace {

int run(int argc, char** argv) {
  CLI::App root{"Sends gradients over a simulated leaf-spine network, packet by packet, on ns-3.", "gradtool_netsim"};
  root.set_version_flag("--version", "gradtool_netsim " GRADTOOL_VERSION " (" GRADTOOL_COMMIT ")");
  root.require_subcommand(1);
  app::set_help_format(root);
  root.get_version_ptr()->group("General");
  root.footer(
      "Exit status: 0 done, 1 a check failed, 2 usage, 3 bad data, 4 backend failure. What is modelled: "
      "docs/netsim.md.");
  const std::vector<Command> commands{add_iterations(root), add_replay(root), add_queue(root)};
  for (const auto& command : commands) command.parser->get_help_ptr()->group("General");
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return root.exit(error);  // --help, --version
    throw Error{Fault::usage, error.what()};
  }
  catch_interrupts();
  for (const auto& command : commands) {
    if (command.parser->parsed()) return command.run();
  }
  return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
  try {
    const int status = run(argc, argv);
    if (std::fflush(stdout) != 0) throw Error{Fault::backend, "output is lost: standard output cannot be written"};
    return status;
  } catch (const Error& error) {
    fmt::print(stderr, "gradtool_netsim: {}\n", error.what());
    return exit_status(error.fault());
  } catch (const Interrupted& stopped) {
    fmt::print(stderr, "{}\n", stopped.what());
    return 130;  // shells have it so
  } catch (const std::exception& error) {
    fmt::print(stderr, "gradtool_netsim: {}\n", error.what());
    return exit_status(Fault::backend);
  }
}

}  // namespace gradtool::netsim
