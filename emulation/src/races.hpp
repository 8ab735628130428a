#pragma once

// Tells ThreadSanitizer about the emulated GPU: that its threads are fibers, and which of their waits order memory. It
// then reports races between threads, in whatever order the emulator ran them. In other builds these functions do
// nothing.
#if defined(GT_EMULATION_RACES)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateBenignRaceSized(const char* file, int line, void* address, unsigned long bytes, const char* why);
}
#endif

namespace emulation::races {

#if defined(GT_EMULATION_RACES)
inline void* current() {
  return __tsan_get_current_fiber();
}
inline void* made() {
  return __tsan_create_fiber(0);
}
/// Switches ThreadSanitizer to another fiber; called just before the switch itself. Orders nothing.
inline void turn_to(void* fiber) {
  __tsan_switch_to_fiber(fiber, 1);
}
/// Orders accesses before a call of tell(token) before accesses after a call of hear(token).
inline void tell(void* token) {
  __tsan_release(token);
}
inline void hear(void* token) {
  __tsan_acquire(token);
}
/// While it lives, accesses of the emulator itself on a fiber do not count as accesses of the GPU.
class Unseen {
 public:
  Unseen() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};
inline void expect(void* first, unsigned long bytes) {
  AnnotateBenignRaceSized(__FILE__, __LINE__, first, bytes,
                          "shared memory of blocks that are played one after another");
}
#else
inline void* current() {
  return nullptr;
}
inline void* made() {
  return nullptr;
}
inline void turn_to(void* /*fiber*/) {}
inline void tell(void* /*token*/) {}
struct Unseen {
  Unseen() {}
};
inline void hear(void* /*token*/) {}
#endif

}  // namespace emulation::races
