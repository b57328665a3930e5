/* System calls that fail on command, for files below one folder (see syscalls.py).

   Built as a library and loaded with LD_PRELOAD; every function here takes the place of the C library's own, counts the
   call if it concerns the folder, and lets the one that was chosen fail, write half, or end the process. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FAIL, HALF, KILL };
#define MOST 20000
static char root[4096], names[MOST][8]; /* which calls were counted, in their order */
static long seen, chosen = -2; /* -2: switched off, -1: only counting */
static int how, number;

void fault_arm(const char *folder, long nth, int mode, int error) {
    snprintf(root, sizeof root, "%s", folder);
    seen = 0, chosen = nth, how = mode, number = error;
}
long fault_seen(void) { return seen; }
const char *fault_name(long nth) { return nth < MOST ? names[nth] : ""; }

static int concerns(const char *path) { return chosen > -2 && path && !strncmp(path, root, strlen(root)); }

static int concerns_file(int file) {
    char link[64], path[4096];
    if (chosen == -2) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return concerns(path);
}

/* Whether this call is the chosen one. */
static int strikes(const char *name, int concerned) {
    if (!concerned) return 0;
    if (seen < MOST) snprintf(names[seen], sizeof names[seen], "%s", name);
    if (seen++ != chosen) return 0;
    if (how == KILL) syscall(SYS_kill, getpid(), SIGKILL);
    errno = number;
    return 1;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); const int mode = va_arg(more, int); va_end(more); \
        REAL(int, name, const char *, int, ...); \
        return strikes("open", concerns(path)) && how == FAIL ? -1 : real(path, flags, mode); }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); const int mode = va_arg(more, int); va_end(more); \
        REAL(int, name, int, const char *, int, ...); \
        return strikes("open", concerns(path)) && how == FAIL ? -1 : real(folder, path, flags, mode); }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void *from, size_t count) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (strikes("write", concerns_file(file))) {
        if (how == FAIL) return -1;
        if (how == HALF) return real(file, from, count / 2);
    }
    return real(file, from, count);
}

ssize_t read(int file, void *to, size_t count) {
    REAL(ssize_t, read, int, void *, size_t);
    if (strikes("read", concerns_file(file))) {
        if (how == FAIL) return -1;
        if (how == HALF) return real(file, to, count > 1 ? count / 2 : count);
    }
    return real(file, to, count);
}

#define BY_PATH(type, name, called) \
    type name(const char *path) { \
        REAL(type, name, const char *); \
        return strikes(called, concerns(path)) && how == FAIL ? (type)-1 : real(path); }
BY_PATH(int, unlink, "unlink")
BY_PATH(int, rmdir, "rmdir")

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    return strikes("unlink", concerns(path)) && how == FAIL ? -1 : real(folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    return strikes("mkdir", concerns(path)) && how == FAIL ? -1 : real(path, mode);
}

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    return strikes("rename", concerns(from)) && how == FAIL ? -1 : real(from, to);
}

int fsync(int file) {
    REAL(int, fsync, int);
    return strikes("fsync", concerns_file(file)) && how == FAIL ? -1 : real(file);
}

int flock(int file, int operation) {
    REAL(int, flock, int, int);
    return strikes("flock", concerns_file(file)) && how == FAIL ? -1 : real(file, operation);
}

int close(int file) {
    REAL(int, close, int);
    const int strike = strikes("close", concerns_file(file)), answer = real(file);
    if (!strike || how != FAIL) return answer;
    errno = number;
    return -1;
}

DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *);
    return strikes("opendir", concerns(path)) && how == FAIL ? NULL : real(path);
}

#define STAT(name, kind) \
    int name(const char *path, struct kind *found) { \
        REAL(int, name, const char *, struct kind *); \
        return strikes("stat", concerns(path)) && how == FAIL ? -1 : real(path, found); }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
