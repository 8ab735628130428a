#include "lib/core/error.hpp"

namespace gradtool::detail {

void throw_internal(const char* message, const char* file, int line) {
  // The path in the repository, not the one on the machine that built the program.
  std::string place{file};
  for (const char* folder : {"/lib/", "/kernels/", "/apps/", "/tests/"}) {
    if (const auto at = place.rfind(folder); at != std::string::npos) place.erase(0, at + 1);
  }
  throw Error{
      Fault::internal,
      std::string{"internal error, please report it: "} + message + " (" + place + ":" + std::to_string(line) + ")",
      file, line};
}

}  // namespace gradtool::detail
