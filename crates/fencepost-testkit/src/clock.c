/*
 * A wall clock that a test moves while the server runs: adds an offset to the time of day and leaves every other
 * clock alone. Loaded with LD_PRELOAD.
 *
 * It allocates nothing and asks the kernel itself: the server's allocator reads clocks before it is ready, and
 * looking up libc's own functions may allocate.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The mapped file: the offset in seconds, and the same with all bits turned over. */
static const int64_t *offset_and_check;

__attribute__((constructor)) static void map_the_offset(void) {
    static const char failed[] = "clock.c: cannot map the file named by FENCEPOST_CLOCK\n";
    const char *path = getenv("FENCEPOST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) {
        /* A clock that cannot be moved would let a test pass that should not. */
        (void)!write(STDERR_FILENO, failed, sizeof failed - 1);
        _exit(1);
    }
    close(file);
    offset_and_check = map;
}

static int64_t offset(void) {
    if (!offset_and_check)
        return 0;
    for (;;) {
        int64_t value = __atomic_load_n(&offset_and_check[0], __ATOMIC_ACQUIRE);
        int64_t check = __atomic_load_n(&offset_and_check[1], __ATOMIC_ACQUIRE);
        /* They differ while a write is under way: half of an old offset and half of a new one may be centuries. */
        if (value == ~check)
            return value;
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    if (zone)
        *(struct timezone *)zone = (struct timezone){0};
    return 0;
}

time_t time(time_t *also) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (also)
        *also = now.tv_sec;
    return now.tv_sec;
}
