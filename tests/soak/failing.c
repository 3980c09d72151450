/* System calls that fail, for any program (LD_PRELOAD), below one folder.
 *
 * SOAK_FAIL="CALL ERRNO AFTER COUNT FOLDER": of the calls of this name that are about something
 * below FOLDER, those after the first AFTER fail, COUNT of them, in each process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int passed;

static int is_below(int fd, const char *path, const char *folder) {
    char name[64], found[PATH_MAX];
    if (path && *path == '/')
        return !strncmp(path, folder, strlen(folder));
    snprintf(name, sizeof name, fd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, found, sizeof found - 1);
    if (length < 0)
        return 0;
    found[length] = 0;
    return !strncmp(found, folder, strlen(folder));
}

static int fails(const char *call, int fd, const char *path) {
    char name[32], folder[PATH_MAX];
    int number, after, count, kept = errno, is_it;
    const char *rule = getenv("SOAK_FAIL");
    if (!rule || sscanf(rule, "%31s %d %d %d %4095s", name, &number, &after, &count, folder) != 5)
        return 0;
    is_it = !strncmp(call, name, strlen(name)) && is_below(fd, path, folder);
    errno = kept;
    if (!is_it || passed++ < after || passed > after + count)
        return 0;
    errno = number;
    return 1;
}

#define CALL(type, name, fd, path, parameters, arguments)                     \
    type name parameters {                                                    \
        static type(*plain) parameters;                                       \
        if (!plain)                                                           \
            plain = dlsym(RTLD_NEXT, #name);                                  \
        return fails(#name, fd, path) ? -1 : plain arguments;                 \
    }

CALL(ssize_t, write, fd, NULL, (int fd, const void *data, size_t size), (fd, data, size))
CALL(ssize_t, pwrite, fd, NULL, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
CALL(ssize_t, pwrite64, fd, NULL, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
CALL(int, fsync, fd, NULL, (int fd), (fd))
CALL(int, fdatasync, fd, NULL, (int fd), (fd))
CALL(int, ftruncate, fd, NULL, (int fd, off_t size), (fd, size))
CALL(int, ftruncate64, fd, NULL, (int fd, off64_t size), (fd, size))
CALL(int, fchmod, fd, NULL, (int fd, mode_t mode), (fd, mode))
CALL(int, futimens, fd, NULL, (int fd, const struct timespec times[2]), (fd, times))
CALL(int, rename, AT_FDCWD, to, (const char *from, const char *to), (from, to))
CALL(int, renameat, at, to, (int from_at, const char *from, int at, const char *to), (from_at, from, at, to))
CALL(int, link, AT_FDCWD, to, (const char *from, const char *to), (from, to))
CALL(int, linkat, at, to, (int from_at, const char *from, int at, const char *to, int how), (from_at, from, at, to, how))
CALL(int, unlink, AT_FDCWD, path, (const char *path), (path))
CALL(int, unlinkat, at, path, (int at, const char *path, int how), (at, path, how))
CALL(int, mkdir, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
CALL(int, mkdirat, at, path, (int at, const char *path, mode_t mode), (at, path, mode))

#define OPEN(name, at, parameters, arguments)                                 \
    int name parameters {                                                     \
        static int(*plain) parameters;                                        \
        mode_t mode = 0;                                                      \
        if (how & (O_CREAT | O_TMPFILE)) {                                    \
            va_list more;                                                     \
            va_start(more, how);                                              \
            mode = va_arg(more, mode_t);                                      \
            va_end(more);                                                     \
        }                                                                     \
        if (!plain)                                                           \
            plain = dlsym(RTLD_NEXT, #name);                                  \
        return fails(#name, at, path) ? -1 : plain arguments;                 \
    }

OPEN(open, AT_FDCWD, (const char *path, int how, ...), (path, how, mode))
OPEN(open64, AT_FDCWD, (const char *path, int how, ...), (path, how, mode))
OPEN(openat, at, (int at, const char *path, int how, ...), (at, path, how, mode))
OPEN(openat64, at, (int at, const char *path, int how, ...), (at, path, how, mode))
