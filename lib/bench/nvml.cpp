// NVML through dlopen: neither its header nor its library has to be there, on the machine that builds or on the one
// that measures.
#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

#include "lib/bench/throttle.hpp"

namespace gradtool {
namespace {

// From NVML's reference: nvmlReturn_t is an enum, 0 is success; a device is an opaque pointer.
using Device = void*;
using Initialise = int (*)();
using FindDevice = int (*)(const char*, Device*);
using ReadReasons = int (*)(Device, unsigned long long*);
using ErrorText = const char* (*)(int);

/// The library, open for as long as somebody reads. NVML counts its initialisations.
class Nvml {
 public:
  explicit Nvml(const char* name) : library_{dlopen(name, RTLD_NOW | RTLD_LOCAL)} {
    if (library_ == nullptr) return;
    find_ = find<FindDevice>("nvmlDeviceGetHandleByPciBusId_v2");
    // Renamed in CUDA 12.2; drivers of either age are around.
    read_ = find<ReadReasons>("nvmlDeviceGetCurrentClocksEventReasons");
    if (read_ == nullptr) read_ = find<ReadReasons>("nvmlDeviceGetCurrentClocksThrottleReasons");
    text_ = find<ErrorText>("nvmlErrorString");
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (library_ == nullptr) return;
    const auto shutdown = find<Initialise>("nvmlShutdown");
    if (initialised_ && shutdown != nullptr) shutdown();
    dlclose(library_);
  }

  /// Why the GPU's clock cannot be watched; empty when `device` is set and was read once.
  std::string open(const std::string& pci_bus_id, Device& device) {
    if (library_ == nullptr) return "there is no NVML here";
    const auto initialise = find<Initialise>("nvmlInit_v2");
    if (initialise == nullptr || find_ == nullptr || read_ == nullptr) return "this NVML does not have the calls";
    if (const int code = initialise(); code != 0) return failure("nvmlInit", code);
    initialised_ = true;
    if (const int code = find_(pci_bus_id.c_str(), &device); code != 0) return failure("finding the GPU", code);
    unsigned long long reasons = 0;
    if (const int code = read_(device, &reasons); code != 0) return failure("reading clock reasons", code);
    return {};
  }
  [[nodiscard]] std::uint64_t reasons(Device device) const {
    unsigned long long reasons = 0;
    return read_(device, &reasons) == 0 ? reasons : 0;
  }

 private:
  template <class Function>
  [[nodiscard]] Function find(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }
  [[nodiscard]] std::string failure(const char* what, int code) const {
    const char* said = text_ == nullptr ? nullptr : text_(code);
    return fmt::format("NVML: {}: {}", what, said == nullptr ? fmt::format("error {}", code) : std::string{said});
  }

  void* library_;
  bool initialised_ = false;
  FindDevice find_ = nullptr;
  ReadReasons read_ = nullptr;
  ErrorText text_ = nullptr;
};

}  // namespace

ClockReasons nvml_clock_reasons(const std::string& pci_bus_id, std::string& why_not, const char* library) {
  auto nvml = std::make_shared<Nvml>(library);
  Device device = nullptr;
  why_not = nvml->open(pci_bus_id, device);
  if (!why_not.empty()) return {};
  return [nvml, device] { return nvml->reasons(device); };
}

}  // namespace gradtool
