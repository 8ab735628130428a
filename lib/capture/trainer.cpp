#include "lib/capture/trainer.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gradtool_version.hpp"
#include "lib/capture/catalogue.hpp"
#include "lib/capture/torch_module.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

/// <prefix>/lib/gradtool/..., for a program in <prefix>/bin. It is looked for nowhere else: what the dynamic loader
/// would find in other folders need not be ours.
std::filesystem::path module_path() {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return program.parent_path().parent_path() / "lib" / "gradtool" / kTorchModuleFile;
}

bool has_our_version(const std::filesystem::path& module) {
  std::ifstream file{module, std::ios::binary};
  const std::string bytes{std::istreambuf_iterator<char>{file}, {}};
  const std::string stamp{GRADTOOL_TORCH_STAMP GRADTOOL_VERSION};
  return bytes.find(stamp.c_str(), 0, stamp.size() + 1) != std::string::npos;
}

/// The path of the module; throws unless it is there and belongs to this program.
std::filesystem::path our_module() {
  auto path = module_path();
  if (std::error_code ignored; !std::filesystem::exists(path, ignored)) {
    throw_error(Fault::unavailable, "capture and train need '{}', which is not there; install it with the program",
                path.string());
  }
  if (!has_our_version(path)) {
    throw_error(Fault::backend, "'{}' belongs to another version than this gradtool {}; install both anew",
                path.string(), GRADTOOL_VERSION);
  }
  return path;
}

/// The module, loaded on the first call. It stays loaded until the process ends, because LibTorch cannot be unloaded.
const TorchModule& torch_module() {
  static const TorchModule* const loaded = [] {
    const auto path = our_module();
    void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr)
      throw_error(Fault::unavailable, "capture and train need LibTorch, which cannot be loaded: {}", dlerror());
    void* const entry = dlsym(module, kTorchModuleEntry);
    if (entry == nullptr)
      throw_error(Fault::backend, "'{}' has no {}; install it anew", path.string(), kTorchModuleEntry);
    return reinterpret_cast<const TorchModule* (*)()>(entry)();
  }();
  return *loaded;
}

}  // namespace

std::unique_ptr<Trainer> make_trainer(const TrainerOptions& options, const Dataset& training_set) {
  require_trainer();
  const ModelInput input = model_input(options.model, training_set, options.image_size);
  return torch_module().make(options, input, training_set, channel_statistics(training_set));
}

void require_trainer() {
#if GT_HAS_TORCH
  static_cast<void>(our_module());
#else
  throw Error{Fault::unavailable,
              "capture and train need LibTorch, which this gradtool was built without; install Debian's libtorch-dev "
              "(or set CMAKE_PREFIX_PATH to another LibTorch) and build again"};
#endif
}

}  // namespace gradtool
