// OpenBLAS starts a thread for each core in its constructor, each of which takes 128 MiB of address space. Where
// `ulimit -v` leaves no room, they try for ever or end the process, before main begins. So the program looks first, and
// starts again with a word to OpenBLAS that it start none; an analysis that would have used them computes on one.
#ifndef GRADTOOL_SANITIZED  // whose own preparations come later
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

constexpr char kName[] = "OPENBLAS_NUM_THREADS=", kOne[] = "OPENBLAS_NUM_THREADS=1";

/// The loader calls this before constructors of libraries, when little more than system calls may be relied on.
void start_again_without_blas_threads(int /*argc*/, char** argv, char** environment) {
  std::size_t count = 0, at = 0;  // of variables; and the place of this one
  bool named = false;
  for (; environment[count] != nullptr; ++count) {
    if (!named && std::strncmp(environment[count], kName, sizeof kName - 1) == 0) {
      named = true;
      at = count;
    }
  }
  if (named && std::strcmp(environment[at], kOne) == 0) return;
  const long threads = named ? std::atol(environment[at] + sizeof kName - 1) : sysconf(_SC_NPROCESSORS_ONLN);
  const rlim_t needed = (rlim_t{1} << 30) + static_cast<rlim_t>(threads > 0 ? threads : 1) * (rlim_t{144} << 20);
  bool enough = true;
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur < needed) enough = false;
  }
  constexpr std::size_t kMostVariables = 4096;
  if (enough || count + 2 > kMostVariables) return;
  char* changed[kMostVariables];
  std::memcpy(changed, environment, count * sizeof *changed);
  changed[named ? at : count++] = const_cast<char*>(kOne);
  changed[count] = nullptr;
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length > 0) {
    path[length] = '\0';
    execve(path, argv, changed);  // by its name, which ps and pgrep show
  }
  execve("/proc/self/exe", argv, changed);  // where that is not allowed, either, the program goes on as it is
}

[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)(int, char**,
                                                                             char**) = start_again_without_blas_threads;

}  // namespace
#endif
