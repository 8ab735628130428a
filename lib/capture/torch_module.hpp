#pragma once

#include "lib/capture/trainer.hpp"

// LibTorch lies in a module of its own, which make_trainer loads: it brings some two hundred shared libraries, and a
// third of a second for loading them, that no other command should pay for. Module and program are built together.
namespace gradtool {

inline constexpr const char* kTorchModuleFile = "libgradtool_torch.so";
inline constexpr const char* kTorchModuleEntry = "gradtool_torch_module";

/// What the module's entry point, extern "C" const TorchModule* (), returns.
struct TorchModule {
  const char* version;  ///< GRADTOOL_VERSION of the build; another one has another Trainer
  std::unique_ptr<Trainer> (*make)(const TrainerOptions&, const Dataset&, const ChannelStatistics&);
};

}  // namespace gradtool
