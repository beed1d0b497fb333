/* A clock step for one program, loaded before it (LD_PRELOAD): its wall clock is the machine's plus the seconds that the
 * file SLACKWATER_LAB_CLOCK holds (a double, read anew each time). No other clock is moved, and no other program's.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile double *offset_s;

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("SLACKWATER_LAB_CLOCK");
    int file = name == NULL ? -1 : open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *place = mmap(NULL, sizeof *offset_s, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (place != MAP_FAILED)
        offset_s = place;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int status = (int)syscall(SYS_clock_gettime, clock, t);
    if (status == 0 && clock == CLOCK_REALTIME && offset_s != NULL) {
        double whole = floor(*offset_s);
        t->tv_sec += (time_t)whole;
        t->tv_nsec += (long)((*offset_s - whole) * 1e9);
        if (t->tv_nsec >= 1000000000) {
            t->tv_nsec -= 1000000000;
            t->tv_sec++;
        }
    }
    return status;
}
