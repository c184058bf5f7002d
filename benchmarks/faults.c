/* Loaded before the C library (LD_PRELOAD): reads and writes below a folder that fail, a disk that is full, clocks that
 * jump.
 *
 *   FAULT_FOLDER   the folder
 *   FAULT_EIO      one of so many reads and writes fails with EIO
 *   FAULT_SPACE    bytes that each process may write before ENOSPC
 *   FAULT_CLOCK    one of so many looks at the clock moves it, by up to a day, forth or back
 *   FAULT_SEED     of chance, beside the process id
 *   FAULT_LOG      a file that a letter is added to for each fault
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static const char *folder;
static long eio, space, jumps, written;
static long offset;
static uint64_t state;
static int record = -1;

__attribute__((constructor)) static void begin(void) {
  const char *text;
  folder = getenv("FAULT_FOLDER");
  eio = (text = getenv("FAULT_EIO")) ? atol(text) : 0;
  space = (text = getenv("FAULT_SPACE")) ? atol(text) : 0;
  jumps = (text = getenv("FAULT_CLOCK")) ? atol(text) : 0;
  if ((text = getenv("FAULT_LOG"))) record = open(text, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  state = 88172645463325252ull ^ (uint64_t)getpid() ^ ((text = getenv("FAULT_SEED")) ? (uint64_t)atol(text) << 20 : 0);
}

static uint64_t chance(void) {
  uint64_t next = __atomic_add_fetch(&state, 0x9e3779b97f4a7c15ull, __ATOMIC_RELAXED);
  next = (next ^ (next >> 30)) * 0xbf58476d1ce4e5b9ull;
  next = (next ^ (next >> 27)) * 0x94d049bb133111ebull;
  return next ^ (next >> 31);
}

static int noted(int error, char letter) {
  ssize_t (*real)(int, const void *, size_t) = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
  if (record >= 0 && real(record, &letter, 1) != 1) record = -1;
  return errno = error;
}

static int is_below(int file) {
  char link[64], path[PATH_MAX];
  if (!folder) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return strncmp(path, folder, strlen(folder)) == 0;
}

static int fails(int file, size_t bytes, int writes) {
  if ((!eio && !(space && writes)) || !is_below(file)) return 0;
  if (eio && chance() % (uint64_t)eio == 0) return noted(EIO, 'e');
  if (space && writes && __atomic_add_fetch(&written, (long)bytes, __ATOMIC_RELAXED) > space) return noted(ENOSPC, 's');
  return 0;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *data, size_t bytes) {
  REAL(write);
  return fails(file, bytes, 1) ? -1 : real(file, data, bytes);
}

ssize_t pwrite64(int file, const void *data, size_t bytes, off64_t at) {
  REAL(pwrite64);
  return fails(file, bytes, 1) ? -1 : real(file, data, bytes, at);
}

ssize_t read(int file, void *data, size_t bytes) {
  REAL(read);
  return fails(file, bytes, 0) ? -1 : real(file, data, bytes);
}

ssize_t pread64(int file, void *data, size_t bytes, off64_t at) {
  REAL(pread64);
  return fails(file, bytes, 0) ? -1 : real(file, data, bytes, at);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  REAL(clock_gettime);
  int result = real(clock, now);
  if (jumps && clock == CLOCK_REALTIME) {
    if (chance() % (uint64_t)jumps == 0) {
      __atomic_store_n(&offset, (long)(chance() % 172800) - 86400, __ATOMIC_RELAXED);
      noted(errno, 'c');
    }
    now->tv_sec += __atomic_load_n(&offset, __ATOMIC_RELAXED);
  }
  return result;
}
