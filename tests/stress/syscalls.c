// Stands between a process and the file system (LD_PRELOAD): counts the calls that concern one folder, fails,
// tears or dies at the chosen one, and notes each call that changes something, with its data.
//
// Every call comes by here, whether Python, the compiled writer or a library of torch makes it.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

// What a call does; a mask of these says which calls count.
enum Kind {
  kWrite = 1,
  kSync = 2,
  kRename = 4,
  kMkdir = 8,
  kRemove = 16,
  kAllocate = 32,
  kCreate = 64,
  kOpen = 128,
  kRead = 256,
  kLook = 512,
};

// What happens at the chosen call. A torn write puts half of its bytes down; a delay is drawn, the error its limit
// in microseconds.
enum Action { kNothing, kFail, kDie, kDieAfter, kDieTorn, kShort, kDelay };

enum { kPath = 4200 };

static char root[kPath];
static size_t root_length;
static unsigned counted_kinds;
static long chosen_step;
static int chosen_action, chosen_error, persists;
static atomic_long count;
static atomic_int hit_kind;
static int trace = -1;
static pthread_mutex_t trace_lock = PTHREAD_MUTEX_INITIALIZER;

// From here on, calls of these kinds below `folder` count; the step-th of them meets the action. With `all`
// so does every later one.
void faults_arm(const char* folder, unsigned kinds, long step, int action, int error, int all) {
  snprintf(root, sizeof root, "%s", folder);
  root_length = strlen(root);
  counted_kinds = kinds;
  chosen_step = step;
  chosen_action = action;
  chosen_error = error;
  persists = all;
  atomic_store(&count, 0);
  atomic_store(&hit_kind, 0);
}

// Calls that counted since `faults_arm`.
long faults_count(void) { return atomic_load(&count); }

// The kind of the first call that met the action; 0 when none did.
int faults_hit(void) { return atomic_load(&hit_kind); }

// Note what changes below `folder` in this descriptor; -1 ends it.
void faults_trace(const char* folder, int fd) {
  if (folder != NULL) {
    snprintf(root, sizeof root, "%s", folder);
    root_length = strlen(root);
  }
  trace = fd;
}

static int concerned(const char* path) {
  return root_length > 0 && strncmp(path, root, root_length) == 0 &&
         (path[root_length] == '/' || path[root_length] == 0);
}

static void path_of_fd(int fd, char* out) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, out, kPath - 1);
  out[size < 0 ? 0 : size] = 0;
}

static void path_at(int folder, const char* path, char* out) {
  if (path == NULL) path = "";
  if (path[0] == '/') {
    snprintf(out, kPath, "%s", path);
    return;
  }
  char base[kPath];
  if (folder == AT_FDCWD) {
    if (getcwd(base, sizeof base) == NULL) base[0] = 0;
  } else {
    path_of_fd(folder, base);
  }
  const int used = snprintf(out, kPath, "%.*s", kPath / 2, base);
  if (path[0] != 0) snprintf(out + used, kPath - used, "/%.*s", kPath / 2 - 2, path);
}

// What is to happen to this call.
static enum Action met(enum Kind kind, const char* path) {
  if (root_length == 0 || (counted_kinds & kind) == 0 || !concerned(path)) return kNothing;
  const long now = atomic_fetch_add(&count, 1) + 1;
  if (chosen_action == kNothing || chosen_step <= 0) return kNothing;
  if (persists ? now < chosen_step : now != chosen_step) return kNothing;
  int none = 0;
  atomic_compare_exchange_strong(&hit_kind, &none, (int)kind);
  if (chosen_action == kDie) kill(getpid(), SIGKILL);
  if (chosen_action == kDelay) {
    static _Thread_local unsigned seed;
    if (seed == 0) seed = (unsigned)getpid();
    usleep((unsigned)(rand_r(&seed) % chosen_error));
    return kNothing;
  }
  return (enum Action)chosen_action;
}

static void died(enum Action action) {
  if (action == kDieAfter || action == kDieTorn) kill(getpid(), SIGKILL);
}

#define REAL(type, name, ...)                                        \
  static type (*real)(__VA_ARGS__);                                  \
  if (real == NULL) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static ssize_t written(int fd, const void* data, size_t size) {
  REAL(ssize_t, write, int, const void*, size_t);
  return real(fd, data, size);
}

// One record: the operation's letter, whether it succeeded, its numbers, its paths, its data.
static void note(char what, int failed, int64_t offset, int64_t size, const char* a, const char* b,
                 const struct iovec* parts, int n) {
  if (trace < 0) return;
  pthread_mutex_lock(&trace_lock);
  const int kept = errno;
  char head[2 * kPath + 128];
  const int64_t data = parts == NULL ? 0 : size;
  const int used =
      snprintf(head, sizeof head, "%c %d %lld %lld %lld %zu %zu\n%s%s", what, failed, (long long)offset,
               (long long)size, (long long)data, strlen(a), strlen(b), a, b);
  if (written(trace, head, (size_t)used) != used) abort();
  int64_t left = data;
  for (int i = 0; i < n && left > 0; ++i) {
    const size_t part = parts[i].iov_len < (size_t)left ? parts[i].iov_len : (size_t)left;
    if (part > 0 && written(trace, parts[i].iov_base, part) != (ssize_t)part) abort();
    left -= (int64_t)part;
  }
  errno = kept;
  pthread_mutex_unlock(&trace_lock);
}

// A write of any form: `offset` below zero means at the descriptor's own position.
typedef ssize_t (*Put)(int fd, const struct iovec* parts, int n, off_t offset);

static ssize_t put_all(int fd, const struct iovec* parts, int n, off_t offset, Put put) {
  char path[kPath];
  if (root_length == 0) return put(fd, parts, n, offset);
  path_of_fd(fd, path);
  if (!concerned(path)) return put(fd, parts, n, offset);
  const enum Action action = met(kWrite, path);
  if (action == kFail) {
    errno = chosen_error;
    return -1;
  }
  off_t at = offset;
  if (at < 0) {
    struct stat found;
    const int append = (fcntl(fd, F_GETFL) & O_APPEND) != 0;
    at = append && fstat(fd, &found) == 0 ? found.st_size : lseek(fd, 0, SEEK_CUR);
  }
  ssize_t done;
  if (action == kDieTorn || action == kShort) {
    const size_t half = parts[0].iov_len / 2;
    const struct iovec part = {parts[0].iov_base, half > 0 || action == kDieTorn ? half : 1};
    done = put(fd, &part, 1, offset);
  } else {
    done = put(fd, parts, n, offset);
  }
  if (done >= 0) note('W', 0, at, done, path, "", parts, n);
  died(action);
  return done;
}

static ssize_t put_write(int fd, const struct iovec* parts, int n, off_t offset) {
  (void)n, (void)offset;
  return written(fd, parts->iov_base, parts->iov_len);
}

static ssize_t put_writev(int fd, const struct iovec* parts, int n, off_t offset) {
  (void)offset;
  REAL(ssize_t, writev, int, const struct iovec*, int);
  return real(fd, parts, n);
}

static ssize_t put_pwritev(int fd, const struct iovec* parts, int n, off_t offset) {
  REAL(ssize_t, pwritev64, int, const struct iovec*, int, off_t);
  return real(fd, parts, n, offset);
}

ssize_t write(int fd, const void* data, size_t size) {
  const struct iovec part = {(void*)data, size};
  return put_all(fd, &part, 1, -1, put_write);
}

ssize_t writev(int fd, const struct iovec* parts, int n) { return put_all(fd, parts, n, -1, put_writev); }

ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) {
  const struct iovec part = {(void*)data, size};
  return put_all(fd, &part, 1, offset, put_pwritev);
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return pwrite64(fd, data, size, offset);
}

ssize_t pwritev64(int fd, const struct iovec* parts, int n, off_t offset) {
  return put_all(fd, parts, n, offset, put_pwritev);
}
ssize_t pwritev(int fd, const struct iovec* parts, int n, off_t offset) {
  return pwritev64(fd, parts, n, offset);
}
ssize_t pwritev64v2(int fd, const struct iovec* parts, int n, off_t offset, int flags) {
  (void)flags;
  return pwritev64(fd, parts, n, offset);
}

// The other calls: what the action says, else the call itself, then its note.
#define FAULT(kind, path, failure)        \
  const enum Action action = met(kind, path); \
  if (action == kFail) {                  \
    errno = chosen_error;                 \
    failure;                              \
  }

int fsync(int fd) {
  REAL(int, fsync, int);
  char path[kPath];
  path_of_fd(fd, path);
  FAULT(kSync, path, if (concerned(path)) note('S', 1, 0, 0, path, "", NULL, 0); errno = chosen_error; return -1);
  const int result = real(fd);
  if (concerned(path)) note('S', result != 0, 0, 0, path, "", NULL, 0);
  died(action);
  return result;
}

int fdatasync(int fd) { return fsync(fd); }

static int renamed(int from, const char* old, int to, const char* new) {
  REAL(int, renameat, int, const char*, int, const char*);
  char a[kPath], b[kPath];
  path_at(from, old, a);
  path_at(to, new, b);
  FAULT(kRename, b, return -1);
  const int result = real(from, old, to, new);
  if (result == 0 && concerned(b)) note('R', 0, 0, 0, a, b, NULL, 0);
  died(action);
  return result;
}

int rename(const char* old, const char* new) { return renamed(AT_FDCWD, old, AT_FDCWD, new); }
int renameat(int from, const char* old, int to, const char* new) { return renamed(from, old, to, new); }

int mkdirat(int folder, const char* path, mode_t mode) {
  REAL(int, mkdirat, int, const char*, mode_t);
  char whole[kPath];
  path_at(folder, path, whole);
  FAULT(kMkdir, whole, return -1);
  const int result = real(folder, path, mode);
  if (result == 0 && concerned(whole)) note('M', 0, 0, 0, whole, "", NULL, 0);
  died(action);
  return result;
}
int mkdir(const char* path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int folder, const char* path, int flags) {
  REAL(int, unlinkat, int, const char*, int);
  char whole[kPath];
  path_at(folder, path, whole);
  FAULT(kRemove, whole, return -1);
  const int result = real(folder, path, flags);
  if (result == 0 && concerned(whole)) note('U', 0, 0, 0, whole, "", NULL, 0);
  died(action);
  return result;
}
int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int posix_fallocate64(int fd, off_t offset, off_t size) {
  REAL(int, posix_fallocate64, int, off_t, off_t);
  char path[kPath];
  path_of_fd(fd, path);
  FAULT(kAllocate, path, return chosen_error);
  const int result = real(fd, offset, size);
  if (result == 0 && concerned(path)) note('A', 0, offset, size, path, "", NULL, 0);
  died(action);
  return result;
}
int posix_fallocate(int fd, off_t offset, off_t size) { return posix_fallocate64(fd, offset, size); }

int ftruncate64(int fd, off_t size) {
  REAL(int, ftruncate64, int, off_t);
  char path[kPath];
  path_of_fd(fd, path);
  FAULT(kAllocate, path, return -1);
  const int result = real(fd, size);
  if (result == 0 && concerned(path)) note('T', 0, 0, size, path, "", NULL, 0);
  died(action);
  return result;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int opened(int folder, const char* path, int flags, mode_t mode) {
  REAL(int, openat64, int, const char*, int, ...);
  if (root_length == 0) return real(folder, path, flags, mode);
  char whole[kPath];
  path_at(folder, path, whole);
  const int makes = (flags & (O_CREAT | O_TRUNC)) != 0;
  FAULT(makes ? kCreate : kOpen, whole, return -1);
  const int there = !makes || faccessat(folder, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
  const int result = real(folder, path, flags, mode);
  if (result >= 0 && concerned(whole)) {
    if (!there) note('C', 0, 0, 0, whole, "", NULL, 0);
    if (there && (flags & O_TRUNC) != 0) note('T', 0, 0, 0, whole, "", NULL, 0);
  }
  died(action);
  return result;
}

#define OPEN_MODE                      \
  mode_t mode = 0;                     \
  if ((flags & O_CREAT) != 0) {        \
    va_list more;                      \
    va_start(more, flags);             \
    mode = va_arg(more, mode_t);       \
    va_end(more);                      \
  }

int open(const char* path, int flags, ...) {
  OPEN_MODE
  return opened(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  OPEN_MODE
  return opened(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  OPEN_MODE
  return opened(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  OPEN_MODE
  return opened(folder, path, flags, mode);
}

// Reading and looking can fail too.
#define READS()                                               \
  char path[kPath];                                           \
  if (root_length > 0 && (counted_kinds & kRead) != 0) {      \
    path_of_fd(fd, path);                                     \
    FAULT(kRead, path, return -1);                            \
    died(action);                                             \
  }

ssize_t read(int fd, void* data, size_t size) {
  REAL(ssize_t, read, int, void*, size_t);
  READS()
  return real(fd, data, size);
}
ssize_t pread64(int fd, void* data, size_t size, off_t offset) {
  REAL(ssize_t, pread64, int, void*, size_t, off_t);
  READS()
  return real(fd, data, size, offset);
}
ssize_t pread(int fd, void* data, size_t size, off_t offset) { return pread64(fd, data, size, offset); }
ssize_t preadv64(int fd, const struct iovec* parts, int n, off_t offset) {
  REAL(ssize_t, preadv64, int, const struct iovec*, int, off_t);
  READS()
  return real(fd, parts, n, offset);
}
ssize_t preadv(int fd, const struct iovec* parts, int n, off_t offset) {
  return preadv64(fd, parts, n, offset);
}
ssize_t preadv64v2(int fd, const struct iovec* parts, int n, off_t offset, int flags) {
  REAL(ssize_t, preadv64v2, int, const struct iovec*, int, off_t, int);
  READS()
  return real(fd, parts, n, offset, flags);
}

int fstat64(int fd, struct stat64* found) {
  REAL(int, fstat64, int, struct stat64*);
  char path[kPath];
  if (root_length > 0 && (counted_kinds & kLook) != 0) {
    path_of_fd(fd, path);
    FAULT(kLook, path, return -1);
    died(action);
  }
  return real(fd, found);
}
int fstatat64(int folder, const char* path, struct stat64* found, int flags) {
  REAL(int, fstatat64, int, const char*, struct stat64*, int);
  char whole[kPath];
  if (root_length > 0 && (counted_kinds & kLook) != 0) {
    path_at(folder, path, whole);
    FAULT(kLook, whole, return -1);
    died(action);
  }
  return real(folder, path, found, flags);
}
int stat64(const char* path, struct stat64* found) { return fstatat64(AT_FDCWD, path, found, 0); }
int lstat64(const char* path, struct stat64* found) {
  return fstatat64(AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW);
}
DIR* opendir(const char* path) {
  REAL(DIR*, opendir, const char*);
  char whole[kPath];
  if (root_length > 0 && (counted_kinds & kLook) != 0) {
    path_at(AT_FDCWD, path, whole);
    FAULT(kLook, whole, return NULL);
    died(action);
  }
  return real(path);
}
