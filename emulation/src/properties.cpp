#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "emulation/api.hpp"
#include "emulation/launch.hpp"
#include "src/device.hpp"

namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current = 0;

int devices() {
  const char* text = std::getenv("GRADTOOL_EMULATED_GPUS");
  return text == nullptr ? 8 : std::atoi(text);
}
cudaError_t kept(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace

int emulation::current_device() {
  return current;
}
void emulation::set_error(int error) {
  last_error = static_cast<cudaError_t>(error);
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
  }
  return "an error that the emulated GPU does not have";
}
const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  return cudaDriverGetVersion(version);
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return kept(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (device < 0 || device >= devices()) return kept(cudaErrorInvalidDevice);
  std::snprintf(id, static_cast<std::size_t>(length), "FFFFFFFF:%02X:00.0", static_cast<unsigned>(device));
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= devices()) return kept(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "emulated GPU");
  properties->totalGlobalMem = std::size_t{16} << 30;
  properties->sharedMemPerBlockOptin = emulation::kSharedBytes;
  properties->major = 9;
  properties->multiProcessorCount = 4;
  properties->l2CacheSize = 1 << 20;
  return cudaSuccess;
}
