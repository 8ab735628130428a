#include "lib/bench/throttle.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

namespace gradtool {
namespace {

// From NVML's reference: nvmlReturn_t is an enum, 0 is success; a device is an opaque pointer.
using Device = void*;
using Initialise = int (*)();
using FindDevice = int (*)(const char*, Device*);
using ReadReasons = int (*)(Device, unsigned long long*);
using ErrorText = const char* (*)(int);

/// NVML through dlopen: neither its header nor its library has to be there, on the machine that builds or on the one
/// that measures. The library is open for as long as somebody reads. NVML counts its initialisations.
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

std::array<double, kThrottleReasons.size()> ThrottleWatch::take() {
  std::array<double, kThrottleReasons.size()> seen{};
  for (std::size_t i = 0; i < seen.size(); ++i) seen[i] = (seen_ & kThrottleReasons[i].bit) != 0 ? 1.0 : 0.0;
  seen_ = 0;
  return seen;
}

bool DiscardedSamples::count(std::span<const double> seen) {
  bool any = false;
  for (std::size_t i = 0; i < why_.size(); ++i) {
    const bool held_down = seen[i] > 0.0;
    why_[i] = why_[i] || held_down;
    any = any || held_down;
  }
  samples_ += any ? 1 : 0;
  return any;
}

std::string DiscardedSamples::note() const {
  if (samples_ == 0) return {};
  std::string reasons;
  for (std::size_t i = 0; i < why_.size(); ++i) {
    if (why_[i]) reasons += fmt::format("{}{}", reasons.empty() ? "" : ", ", kThrottleReasons[i].name);
  }
  return fmt::format("{} sample{} discarded: the GPU's clock was held down ({})", samples_, samples_ == 1 ? "" : "s",
                     reasons);
}

ClockReasons nvml_clock_reasons(const std::string& pci_bus_id, std::string& why_not, const char* library) {
  auto nvml = std::make_shared<Nvml>(library);
  Device device = nullptr;
  why_not = nvml->open(pci_bus_id, device);
  if (!why_not.empty()) return {};
  return [nvml, device] { return nvml->reasons(device); };
}

}  // namespace gradtool
