#include <chrono>

#include "emulation/api.hpp"
#include "emulation/launch.hpp"
#include "src/device.hpp"

struct CUevent_st {
  emulation::Mark mark{nullptr, 0};
  bool timing = true;
  double seconds = 0.0;  ///< time at which the last record ran; the GPU's thread writes it
};

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->timing = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event->mark.stream != nullptr) emulation::finish(event->mark);  // the task at the mark writes the time
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  emulation::enqueue(stream, [event] { event->seconds = now(); });
  event->mark = emulation::mark_here(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  if (event->mark.stream != nullptr) emulation::hold(stream, event->mark);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->mark.stream == nullptr || emulation::reached(event->mark)) return cudaSuccess;
  static_cast<void>(emulation::advance(event->mark.stream));
  return emulation::reached(event->mark) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->mark.stream != nullptr) emulation::finish(event->mark);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  if (!start->timing || !stop->timing) return cudaErrorInvalidResourceHandle;
  if (start->mark.stream == nullptr || stop->mark.stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (!emulation::reached(start->mark) || !emulation::reached(stop->mark)) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(1e3 * (stop->seconds - start->seconds));
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  emulation::finish(emulation::mark_here(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return emulation::advance(stream) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize() {
  emulation::finish_device();
  return cudaSuccess;
}
