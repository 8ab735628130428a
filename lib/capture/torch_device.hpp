#pragma once

#include <torch/types.h>

#include <string>

namespace gradtool {

/// Sets LibTorch up in this process and returns the device: deterministic algorithms, `operator_threads` threads inside
/// one operator on the CPU, and a malloc that keeps what a step frees for the next one. Throws Fault::unavailable when
/// `name` is cuda and LibTorch sees no such device.
[[nodiscard]] torch::Device open_device(const std::string& name, int operator_threads);

/// LibTorch counts threads for each calling thread anew: call this first on every thread but the one of open_device.
void join_device();

}  // namespace gradtool
