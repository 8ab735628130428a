#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace gradtool {

/// Reads what holds the clock of one GPU down at this moment, in the bits of NVML's nvmlClocksEventReasons. Empty:
/// nobody watches.
using ClockReasons = std::function<std::uint64_t()>;

/// A reason for which a sample is not what the GPU does when it is cool and well fed. A software power cap is none: at
/// full load it is how the card is meant to run.
struct ThrottleReason {
  std::uint64_t bit;
  std::string_view name;
};
inline constexpr std::array<ThrottleReason, 4> kThrottleReasons{{{0x08, "hardware slowdown"},
                                                                 {0x20, "software thermal slowdown"},
                                                                 {0x40, "hardware thermal slowdown"},
                                                                 {0x80, "power brake"}}};

/// Looks at the clock around what is timed, and keeps what was seen for one sample. Without a source it sees nothing.
class ThrottleWatch {
 public:
  explicit ThrottleWatch(ClockReasons reasons) : reasons_{std::move(reasons)} {}

  void look() {
    if (reasons_) seen_ |= reasons_();
  }
  /// 1 for each of kThrottleReasons that was seen since the last call, else 0: for the ranks to agree on.
  [[nodiscard]] std::array<double, kThrottleReasons.size()> take();

 private:
  ClockReasons reasons_;
  std::uint64_t seen_ = 0;
};

/// Samples that were thrown away, for the note in the row.
class DiscardedSamples {
 public:
  /// `seen`: as from ThrottleWatch::take, over all ranks. True when the sample is to be thrown away.
  bool count(std::span<const double> seen);
  [[nodiscard]] std::size_t samples() const { return samples_; }
  /// "3 samples discarded: the clock was held down (hardware thermal slowdown)"; empty when there were none.
  [[nodiscard]] std::string note() const;

 private:
  std::size_t samples_ = 0;
  std::array<bool, kThrottleReasons.size()> why_{};
};

/// NVML's reasons for the GPU at a PCI address ("00000000:3B:00.0"), from a library that is loaded when it is there: a
/// GPU without it is measured all the same. Empty, with one clause in `why_not`, where it cannot be watched.
[[nodiscard]] ClockReasons nvml_clock_reasons(const std::string& pci_bus_id, std::string& why_not,
                                              const char* library = "libnvidia-ml.so.1");

}  // namespace gradtool
