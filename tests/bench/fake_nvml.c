/* Stands in for libnvidia-ml.so.1: one GPU at a known address, and an older driver's name for the one call that was renamed. */
#include <string.h>

static int initialised;

int nvmlInit_v2(void) {
  ++initialised;
  return 0;
}
int nvmlShutdown(void) {
  --initialised;
  return 0;
}
const char* nvmlErrorString(int code) { return code == 6 ? "Not Found" : "Unknown Error"; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  if (initialised == 0) return 1;
  if (strcmp(id, "00000000:3B:00.0") != 0) return 6;
  *device = &initialised;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  if (device != &initialised || initialised == 0) return 2;
  *reasons = 0x45;
  return 0;
}
