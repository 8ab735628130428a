#include "kernels/cuda/late.hpp"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>

#include "lib/core/error.hpp"

namespace gradtool::cuda {
namespace {

void* load(const std::string& library) {
  if (void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL); loaded != nullptr) return loaded;
  const char* said = dlerror();
  const std::string reason = said == nullptr ? "" : said;
  if (void* loaded = dlopen((GT_CUDA_LIBRARIES "/" + library).c_str(), RTLD_NOW | RTLD_LOCAL); loaded != nullptr)
    return loaded;
  throw Error{Fault::unavailable, "this needs " + library + " of the CUDA toolkit, which cannot be loaded: " + reason};
}

}  // namespace

void* late_function(const char* library, const char* function) {
  static std::mutex mutex;
  static std::map<std::string, void*> loaded;
  const std::lock_guard lock{mutex};
  auto found = loaded.find(library);
  if (found == loaded.end()) found = loaded.emplace(library, load(library)).first;
  void* address = dlsym(found->second, function);
  if (address == nullptr)
    throw Error{Fault::unavailable, std::string{library} + " of the CUDA toolkit has no function " + function};
  return address;
}

}  // namespace gradtool::cuda
