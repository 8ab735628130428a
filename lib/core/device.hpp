#pragma once

#include <string_view>

namespace gradtool {

/// The value of --device: the CPU or one of this machine's GPUs.
struct DeviceChoice {
  bool cuda = false;
  int index = 0;
};

/// Parses "cpu", "cuda" (the first GPU) or "cuda:INDEX". Throws Fault::usage for anything else. Does not check whether
/// the GPU exists.
[[nodiscard]] DeviceChoice parse_device(std::string_view text);

}  // namespace gradtool
