/* Prints the frequency of this processor's time stamp counter in kHz, measured over a fifth of a second.
 *
 * An emulated guest reads this very counter. It would measure its frequency itself, and badly when it is kept waiting. */
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct reading {
    unsigned long long ticks;
    double seconds;
};

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* Counter and clock at one instant: of many readings, the one that took the shortest time. */
static struct reading read_both(void) {
    struct reading best = {0, 0};
    unsigned long long shortest = ~0ull;
    for (int i = 0; i < 1000; i++) {
        unsigned long long before = __rdtsc();
        double seconds = now_s();
        unsigned long long after = __rdtsc();
        if (after - before < shortest) {
            shortest = after - before;
            best = (struct reading){before + (after - before) / 2, seconds};
        }
    }
    return best;
}

int main(void) {
    struct timespec wait = {0, 200000000};
    struct reading begin = read_both();
    nanosleep(&wait, NULL);
    struct reading end = read_both();
    printf("%.0f\n", (end.ticks - begin.ticks) / (end.seconds - begin.seconds) / 1e3);
    return 0;
}
