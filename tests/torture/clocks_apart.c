/* Preloaded into a server: its wall clock is off by what the file named in CLOCK_FILE says (8 bytes, microseconds). The file may change while the
   server runs: then its clock steps. The monotonic clock is left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long offset(void) {
    static volatile long long *shared;
    if (!shared) {
        const char *path = getenv("CLOCK_FILE");
        int fd = path ? open(path, O_RDONLY) : -1;
        void *map = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
        if (fd >= 0) close(fd);
        if (map == MAP_FAILED) return 0;
        shared = map;
    }
    return *shared;
}

int clock_gettime(clockid_t id, struct timespec *t) {
    int r = syscall(SYS_clock_gettime, id, t);
    if (!r && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        long long ns = t->tv_sec * 1000000000LL + t->tv_nsec + offset() * 1000LL;
        t->tv_sec = ns / 1000000000LL;
        t->tv_nsec = ns % 1000000000LL;
    }
    return r;
}

int gettimeofday(struct timeval *tv, void *zone) {
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    tv->tv_sec = t.tv_sec;
    tv->tv_usec = t.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *p) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (p) *p = t.tv_sec;
    return t.tv_sec;
}
