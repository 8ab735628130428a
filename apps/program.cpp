#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

#include "apps/options.hpp"
#include "apps/program.hpp"
#include "apps/subcommands.hpp"
#include "gradtool_version.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/core/utf8.hpp"
#include "lib/report/color.hpp"

namespace gradtool::app {
namespace {

std::string& stored_command_line() {
  static std::string line;
  return line;
}

/// The message with its middle left out where it is long, because it may quote a whole file that was pasted into an
/// option. Its beginning says what is wrong, its end what would be valid.
std::string shortened(const std::string& message) {
  constexpr std::size_t kHead = 200, kTail = 200;
  if (message.size() <= kHead + kTail + 100) return message;
  const auto continues = [&](std::size_t i) { return (static_cast<unsigned char>(message[i]) & 0xC0U) == 0x80U; };
  std::size_t head = kHead, tail = message.size() - kTail;
  while (head > 0 && continues(head)) --head;  // not in the middle of a character of UTF-8
  while (tail < message.size() && continues(tail)) ++tail;
  return fmt::format("{} [{} bytes left out] {}", message.substr(0, head), tail - head, message.substr(tail));
}

/// fmt::print would throw where standard error cannot be written, and nobody could be told.
void print_error(const std::string& line) {
  constexpr std::string_view kName = "gradtool:";
  const bool named = line.starts_with(kName);
  std::fputs(
      (inked(named ? kName : "", Ink::error, named && color_on(stderr)) + line.substr(named ? kName.size() : 0) + "\n")
          .c_str(),
      stderr);
}

/// `status`, unless something that was printed got lost.
int checked_streams(int status) {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw_error(Fault::backend, "output is lost: standard output cannot be written{}{}", errno != 0 ? ": " : "",
                errno != 0 ? std::strerror(errno) : "");
  }
  return status == 0 && std::ferror(stderr) != 0 ? static_cast<int>(Fault::backend) : status;
}

/// On standard error, once for a job of many processes: rank 0 speaks. The others must not end before it has, since
/// launchers then end it. A mistake on the command line that is found after the processes have met is everybody's,
/// because they have compared their options. What a process may have met alone, such as a file that its machine lacks,
/// it says later, if by then the launcher has not ended it: rank 0 has not failed. The sentence may quote an option,
/// whose line ends would break it; a `hint` is a line of its own.
void report(const std::string& sentence, Fault fault, const std::string& hint = {}) {
  const int rank = mpi_place().rank;
  const std::string what = printable(shortened(sentence)) + hint;
  if (rank == 0) {
    print_error(what);
    return;
  }
  const bool of_all = fault == Fault::usage && mpi_started();
  const int patience = of_all ? 50 : 300;  // hundredths of a second; mpirun takes one second
  for (int i = 0; i < patience && !interrupted(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds{10});
  if (!of_all && !interrupted()) print_error(fmt::format("{} (rank {})", what, rank));
}

int report_usage(const CLI::App& root, const CLI::ParseError& error) {
  const auto chosen = root.get_subcommands();
  const CLI::App& parser = chosen.empty() ? root : *chosen.front();
  std::string message = error.what();
  if (const auto extras = parser.remaining(true); !extras.empty()) {
    message = fmt::format("unknown argument '{}'", extras.front());
    if (const std::string near = nearest_flag(parser, extras.front()); !near.empty()) {
      message += fmt::format("; did you mean '{}'?", near);
    }
  }
  report("gradtool: " + message, Fault::usage,
         fmt::format("\nTry '{} --help'.", chosen.empty() ? "gradtool" : "gradtool " + parser.get_name()));
  return static_cast<int>(Fault::usage);
}

template <class Number>
bool is_number(const std::string& text) {
  return number_of<Number>(text).has_value();
}

/// CLI11 reads numbers as C does: 0x10 is 16, 010 is 8, and what is out of range becomes something else without a word.
void take_decimal_numbers_only(CLI::App& command) {
  const auto add = [](CLI::Option& option, bool (*valid)(const std::string&), const char* expected) {
    option.check(CLI::Validator{[valid, expected](const std::string& text) {
                                  return valid(text) ? "" : fmt::format("'{}' is not {}", text, expected);
                                },
                                ""});
  };
  for (CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("UINT")) add(*option, is_number<std::uint64_t>, "a whole number from 0 to 2^64 - 1");
    if (type.starts_with("INT")) add(*option, is_number<std::int64_t>, "a whole number between -2^63 and 2^63");
    if (type.starts_with("FLOAT")) add(*option, is_number<double>, "a decimal number");
  }
}

int run(int argc, char** argv) {
  CLI::App root{
      "The bench for gradient compression: capture real gradients, study them, and replay them through codecs and a "
      "real all-reduce.",
      "gradtool"};
  root.set_version_flag("--version", "gradtool " GRADTOOL_VERSION " (" GRADTOOL_COMMIT ", " GRADTOOL_BUILD_TYPE ")");
  root.require_subcommand(1);
  set_help_format(root);
  root.get_version_ptr()->group("General");
  root.footer(
      "Exit status: 0 done, 1 a check failed, 2 usage, 3 bad data, 4 backend failure, 77 not available here.\n"
      "Examples:\n"
      "  gradtool capture --model lenet5 --workers 2 --out lenet5.h5\n"
      "  gradtool bench lenet5.h5 --codec qsgd:bits=4 --codec topk:ratio=0.01\n"
      "  gradtool analyze lenet5.h5 --out analysis/");
  const std::vector<Subcommand> commands{add_capture(root),  add_import(root),    add_merge(root),  add_info(root),
                                         add_validate(root), add_analyze(root),   add_bench(root),  add_tune(root),
                                         add_train(root),    add_compare(root),   add_report(root), add_probe(root),
                                         add_list(root),     add_completion(root)};
  for (const auto& command : commands) {
    add_general_options(*command.parser);
    take_decimal_numbers_only(*command.parser);
  }
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return root.exit(error);  // --help, --version
    return report_usage(root, error);
  }
  catch_interrupts();
  for (const auto& command : commands) {
    if (command.parser->parsed()) return command.run();
  }
  return static_cast<int>(Fault::usage);
}

}  // namespace

const std::string& command_line() {
  return stored_command_line();
}

int run_program(int argc, char** argv) {
  try {
    auto& line = stored_command_line();
    line.clear();
    for (int i = 0; i < argc; ++i) line += (i > 0 ? " " : "") + std::string{i == 0 ? "gradtool" : argv[i]};
    return checked_streams(run(argc, argv));
  } catch (const Error& error) {
    report(fmt::format("gradtool: {}", error.what()), error.fault());
    return exit_status(error.fault());
  } catch (const Interrupted& stopped) {
    print_error(stopped.what());
    return kInterrupted;
  } catch (const std::bad_alloc&) {
    print_error("gradtool: out of memory");
    return static_cast<int>(Fault::backend);
  } catch (const std::filesystem::filesystem_error& error) {
    print_error(fmt::format("gradtool: '{}' cannot be used: {}", error.path1().string(), error.code().message()));
    return static_cast<int>(Fault::backend);
  } catch (const std::exception& error) {
    const bool lost = std::ferror(stdout) != 0 || std::ferror(stderr) != 0;  // fmt::print has thrown
    const bool refused = dynamic_cast<const std::system_error*>(&error) != nullptr;
    const char* const what = lost ? "output is lost" : refused ? "the system refuses a thread" : "unexpected failure";
    print_error(fmt::format("gradtool: {}: {}", what, error.what()));
    return static_cast<int>(Fault::backend);
  }
}

}  // namespace gradtool::app
