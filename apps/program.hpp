#pragma once

namespace gradtool::app {

/// Runs one command once main has set up the process: parses the arguments, of which the first is the program's name,
/// runs the subcommand, and returns the exit status. Reads and writes `stdin`, `stdout` and `stderr`. Throws nothing:
/// every failure is a sentence on `stderr`. May be called again; SIGINT and SIGTERM stay caught after a command has
/// run.
int run_program(int argc, char** argv);

}  // namespace gradtool::app
