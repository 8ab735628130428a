#pragma once

#include "lib/capture/catalogue.hpp"
#include "lib/capture/trainer.hpp"

// The code that uses LibTorch lies in a module of its own, which make_trainer loads. LibTorch brings some two hundred
// shared libraries, which take a third of a second to load, and no other command should pay for that. The module and
// the program are built together.
namespace gradtool {

inline constexpr const char* kTorchModuleFile = "libgradtool_torch.so";
inline constexpr const char* kTorchModuleEntry = "gradtool_torch_module";

/// A mark in the module's bytes: this text, with the version of its build and a zero behind it. Opening a module runs
/// its code, and one of another version has another Trainer, so the program looks for these bytes first.
#define GRADTOOL_TORCH_STAMP "gradtool training module, version "

/// The value that the module's entry point, extern "C" const TorchModule* (), returns.
struct TorchModule {
  std::unique_ptr<Trainer> (*make)(const TrainerOptions&, const ModelInput&, const Dataset&, const ChannelStatistics&);
};

}  // namespace gradtool
