#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
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

/// OpenBLAS starts a thread for each core when it is loaded, and each tries for ever where `ulimit -v` leaves no 128
/// MiB for it, so that the program would never end. None of them is used; the library is told so before it is loaded.
void start_again_without_blas_threads(char** argv) {
  constexpr const char* kThreads = "OPENBLAS_NUM_THREADS";
  const auto limited = [](auto resource) {
    rlimit limit{};
    return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  };
  if (std::getenv(kThreads) != nullptr || !(limited(RLIMIT_AS) || limited(RLIMIT_DATA))) return;
  setenv(kThreads, "1", 1);
  execv("/proc/self/exe", argv);  // where that is not allowed, the program goes on as it is
}

}  // namespace

int main(int argc, char** argv) {
  start_again_without_blas_threads(argv);
  occupy_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` fails like one to a full disk, with a sentence
  return gradtool::app::run_program(argc, argv);
}
