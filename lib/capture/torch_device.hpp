#pragma once

#include <torch/types.h>

#include <string>

namespace gradtool {

/// Sets LibTorch up in this process and returns the device: deterministic algorithms, `operator_threads` threads inside
/// one operator on the CPU, and a malloc that keeps what a step frees for the next one. On a GPU convolutions and
/// products are those of float32 (LibTorch's default rounds their factors to 10 bits, TF32), and the same from run to
/// run. `name` is cpu, cuda or cuda:INDEX. Throws Fault::unavailable when LibTorch sees no such GPU.
[[nodiscard]] torch::Device open_device(const std::string& name, int operator_threads);

/// Waits until a GPU has done what it was given; on the CPU nothing is left to wait for.
void wait_for(const torch::Device& device);

/// LibTorch counts threads for each calling thread anew: call this first on every thread but the one of open_device.
void join_device();

}  // namespace gradtool
