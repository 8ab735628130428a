#include "lib/capture/trainer.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "gradtool_version.hpp"
#include "lib/capture/torch_module.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

/// Opens the module in <prefix>/lib/gradtool when the program is in <prefix>/bin, and otherwise where the dynamic
/// loader finds it.
void* open_module() {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const auto beside = program.parent_path().parent_path() / "lib" / "gradtool" / kTorchModuleFile;
  if (std::filesystem::exists(beside, ignored)) return dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);
  return dlopen(kTorchModuleFile, RTLD_NOW | RTLD_LOCAL);
}

/// The module, loaded on the first call. It stays loaded until the process ends, because LibTorch cannot be unloaded.
const TorchModule& torch_module() {
  static const TorchModule* const loaded = [] {
    void* module = open_module();
    if (module == nullptr) {
      throw Error{Fault::unavailable, fmt::format("capture needs LibTorch, which cannot be loaded: {}", dlerror())};
    }
    void* const entry = dlsym(module, kTorchModuleEntry);
    const auto* found = entry == nullptr ? nullptr : reinterpret_cast<const TorchModule* (*)()>(entry)();
    if (found == nullptr || std::string{found->version} != GRADTOOL_VERSION) {
      throw Error{Fault::backend, fmt::format("{} belongs to another version than this gradtool {}; install both anew",
                                              kTorchModuleFile, GRADTOOL_VERSION)};
    }
    return found;
  }();
  return *loaded;
}

}  // namespace

std::unique_ptr<Trainer> make_trainer(const TrainerOptions& options, const Dataset& training_set) {
  require_trainer();
  return torch_module().make(options, training_set, channel_statistics(training_set));
}

void require_trainer() {
#if GT_HAS_TORCH
  static_cast<void>(torch_module());
#else
  throw Error{Fault::unavailable,
              "capture needs LibTorch, which this gradtool was built without; install Debian's libtorch-dev (or set "
              "CMAKE_PREFIX_PATH to another LibTorch) and build again"};
#endif
}

}  // namespace gradtool
