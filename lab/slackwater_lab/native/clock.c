/* Wall time as a lab's machine has it: LD_PRELOAD adds the offset in a file to what the C library says.
 *
 * SLACKWATER_LAB_CLOCK names a file of 8 bytes, a native double in seconds. It is mapped, so a step reaches running
 * programs at once. Monotonic clocks and file times are not touched. Programs that ask the kernel without the C library
 * (Go: nats-server) do not see it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *offset_s;
static int (*kernels)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    kernels = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("SLACKWATER_LAB_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *place = mmap(NULL, sizeof *offset_s, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (place != MAP_FAILED)
        offset_s = place;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    if (!kernels)
        begin();
    int status = kernels(id, now);
    if (status == 0 && offset_s && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        double whole = floor(*offset_s);
        now->tv_sec += (time_t)whole;
        now->tv_nsec += (long)((*offset_s - whole) * 1e9);
        if (now->tv_nsec >= 1000000000) {
            now->tv_nsec -= 1000000000;
            now->tv_sec++;
        }
    }
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec exact;
    int status = clock_gettime(CLOCK_REALTIME, &exact);
    if (status == 0 && now) {
        now->tv_sec = exact.tv_sec;
        now->tv_usec = exact.tv_nsec / 1000;
    }
    return status;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}
