#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <initializer_list>

#include "apps/program.hpp"

namespace {

/// A file that is opened must not become what the program takes for standard output or error because its caller has
/// closed them. What goes to a closed standard error is dropped; writing to a closed standard output stays an error.
void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) == -1)
      static_cast<void>(open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY));
  }
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` fails like one to a full disk, with a sentence
  return gradtool::app::run_program(argc, argv);
}
