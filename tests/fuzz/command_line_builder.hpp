#pragma once

#include <string>
#include <vector>

#include "tests/fuzz/choices.hpp"

namespace gradtool::fuzz {

struct CommandLine {
  std::vector<std::string> arguments;  ///< without the program's name
  std::vector<std::string> outputs;    ///< paths that an option asks to write
};

/// A command line of info, validate, analyze, bench or list: options that the program itself declares, with plausible
/// and with hostile values. It reads `folder`/in.h5 and writes nowhere but in `folder`. What an option can make
/// arbitrarily slow (samples, ranks, time limits) is kept small, because the user is trusted to mean it.
CommandLine build_command_line(const std::string& folder, Choices& choices);

}  // namespace gradtool::fuzz
