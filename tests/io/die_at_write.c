// Preloaded into a writer: SIGKILL in place of write number $DIE_AT (from 0) to any file, so that a test can visit
// every moment between two writes. Of a long write the first half of its pages is still written, as a kill can leave
// it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static long remaining = -1;

static void count(void) {
  if (remaining < 0) {
    const char* text = getenv("DIE_AT");
    remaining = text != NULL ? atol(text) : 1L << 60;
  }
}

ssize_t pwrite64(int file, const void* bytes, size_t size, off_t offset) {
  ssize_t (*next)(int, const void*, size_t, off_t) =
      (ssize_t(*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64");
  count();
  if (remaining-- == 0) {
    if (size > 4096) (void)!next(file, bytes, size / 2 & ~(size_t)4095, offset);
    kill(getpid(), SIGKILL);
  }
  return next(file, bytes, size, offset);
}
ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  return pwrite64(file, bytes, size, offset);
}

int ftruncate64(int file, off_t size) {
  int (*next)(int, off_t) = (int (*)(int, off_t))dlsym(RTLD_NEXT, "ftruncate64");
  count();
  if (remaining-- == 0) kill(getpid(), SIGKILL);
  return next(file, size);
}
int ftruncate(int file, off_t size) {
  return ftruncate64(file, size);
}
