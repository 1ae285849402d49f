/* A host's clock that is off: preloaded into its processes, this adds to the time of day what a file says.

   SWEEP_CLOCK names a file of eight bytes, the nanoseconds to add. Whoever writes there moves the clock of every process
   that has it, at once. Hosts of namespaces share the kernel's clock, and a time namespace can move only those that
   count from the machine's start.

   What a process waits for until a time of day is moved too, so that a wait is as long as it would be on a host whose
   kernel has that clock. Not moved: the times of files, and waits by a system call of a program's own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000L         /* in nanoseconds */
#define LONGEST_UPTIME 1000000000L /* in seconds: later times are no other clock's than the day's */

static const int64_t none = 0;
static const volatile int64_t *shift_ns = &none;
static int (*kernels)(clockid_t, struct timespec *);

__attribute__((constructor)) static void find_clock(void) {
    kernels = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("SWEEP_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *there = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (there != MAP_FAILED)
        shift_ns = there;
}

static struct timespec moved(const struct timespec *at, int64_t by_ns) {
    int64_t rest_ns = at->tv_nsec + by_ns % SECOND;
    int64_t carried = rest_ns >= SECOND ? 1 : rest_ns < 0 ? -1 : 0;
    return (struct timespec){at->tv_sec + by_ns / SECOND + carried, rest_ns - carried * SECOND};
}

int clock_gettime(clockid_t which, struct timespec *at) {
    int said = kernels ? kernels(which, at) : (int)syscall(SYS_clock_gettime, which, at);
    if (said == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        *at = moved(at, *shift_ns);
    return said;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *at = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *at, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, at) == 0 ? base : 0;
}

/* As the kernel's clock has it. */
static struct timespec until(const struct timespec *given) {
    return given->tv_sec > LONGEST_UPTIME ? moved(given, -*shift_ns) : *given;
}

int pthread_cond_timedwait(pthread_cond_t *restrict on, pthread_mutex_t *restrict lock,
                           const struct timespec *restrict given) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) { /* the unversioned name may be that of an older condition */
        void *found = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
        real = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))found;
    }
    struct timespec at = until(given);
    return real(on, lock, &at);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict lock, const struct timespec *restrict given) {
    static int (*real)(pthread_mutex_t *, const struct timespec *);
    if (!real)
        real = (int (*)(pthread_mutex_t *, const struct timespec *))dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    struct timespec at = until(given);
    return real(lock, &at);
}

int sem_timedwait(sem_t *restrict on, const struct timespec *restrict given) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real)
        real = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec at = until(given);
    return real(on, &at);
}
