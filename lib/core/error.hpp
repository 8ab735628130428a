#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace gradtool {

/// Why it failed. Values are the exit status that `gradtool` ends with, but for `internal`: see exit_status.
enum class Fault : std::uint8_t {
  check = 1,         ///< a check that the user asked for did not hold
  usage = 2,         ///< what the user asked for is not valid
  data = 3,          ///< a file or a payload is not what it claims to be
  backend = 4,       ///< CUDA, NCCL, MPI, HDF5 or the operating system reported an error; another rank failed
  internal = 70,     ///< gradtool broke a rule of its own: a bug, to be reported
  unavailable = 77,  ///< not built in, or no such device here; ctest counts it as skipped
};

/// The status that the program ends with. A bug inside counts as a failure of the backend: the user cannot mend it.
[[nodiscard]] constexpr int exit_status(Fault fault) {
  return static_cast<int>(fault == Fault::internal ? Fault::backend : fault);
}

/// The one exception type that gradtool throws. `what()` is one line that a user can act on: what, where, what is
/// valid.
///
/// `file()` and `line()` are the throw site. std::source_location would say it better, but clang 14 lacks it and
/// nvcc 13.0 crashes on it.
class Error final : public std::runtime_error {
 public:
  Error(Fault fault, const std::string& what, const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : std::runtime_error{what}, fault_{fault}, file_{file}, line_{line} {}

  [[nodiscard]] Fault fault() const noexcept { return fault_; }
  [[nodiscard]] const char* file() const noexcept { return file_; }
  [[nodiscard]] int line() const noexcept { return line_; }

 private:
  Fault fault_;
  const char* file_;
  int line_;
};

namespace detail {
[[noreturn]] void throw_internal(const char* message, const char* file, int line);
}

/// Checks a condition that holds unless gradtool itself is wrong: an invariant, or the precondition of a call that no
/// option of the user can break. Stays on in release builds. Throws Fault::internal with the place of the call, and
/// asks for a report. The message is a literal, so that a check that holds costs one comparison.
inline void expects(bool condition, const char* message, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
  if (!condition) detail::throw_internal(message, file, line);
}

/// Checks a choice of the user: an option's value, a size that a method cannot take. Throws Fault::usage.
inline void expect_valid(bool condition, const char* message, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
  if (!condition) throw Error{Fault::usage, message, file, line};
}

}  // namespace gradtool
