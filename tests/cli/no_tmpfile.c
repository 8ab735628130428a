// Preloaded into gradtool: a file system without files that have no name (NFS and many network file systems), so that
// outputs get a temporary name. What else happens to that name is chosen by TEMPORARY_NAME:
//   symlink, file  another process has put a symbolic link to $VICTIM, or a file, there the moment before
//   rename         the file cannot be renamed
//   close          closing it reports that the disk is full, as network file systems do
//   kill           the process is killed when it is about to rename it
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int temporary = -1;  // the descriptor of the file with the temporary name

static int chosen(const char* what) {
  const char* text = getenv("TEMPORARY_NAME");
  return text != NULL && strcmp(text, what) == 0;
}

static int is_temporary(const char* path) {
  const char* slash = strrchr(path, '/');
  return strncmp(slash != NULL ? slash + 1 : path, ".gradtool-", 10) == 0;
}

static int open_as(const char* function, const char* path, int flags, mode_t mode) {
  int (*next)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, function);
  if ((flags & O_TMPFILE) == O_TMPFILE) {
    errno = EOPNOTSUPP;
    return -1;
  }
  const int ours = (flags & O_CREAT) != 0 && is_temporary(path);
  if (ours && chosen("symlink")) (void)!symlink(getenv("VICTIM"), path);
  if (ours && chosen("file")) close(next(path, O_CREAT | O_WRONLY, 0600));
  const int descriptor = next(path, flags, mode);
  if (ours) temporary = descriptor;
  return descriptor;
}

static mode_t mode_in(int flags, va_list rest) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_in(flags, rest);
  va_end(rest);
  return open_as("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_in(flags, rest);
  va_end(rest);
  return open_as("open64", path, flags, mode);
}

int close(int descriptor) {
  int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "close");
  const int status = next(descriptor);
  if (descriptor < 0 || descriptor != temporary) return status;
  temporary = -1;
  if (!chosen("close")) return status;
  errno = ENOSPC;
  return -1;
}

int rename(const char* from, const char* to) {
  int (*next)(const char*, const char*) = (int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename");
  if (is_temporary(from) && chosen("kill")) kill(getpid(), SIGKILL);
  if (is_temporary(from) && chosen("rename")) {
    errno = EIO;
    return -1;
  }
  return next(from, to);
}
