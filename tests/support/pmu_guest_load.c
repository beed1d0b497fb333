// Work of known size for a guest with hardware counters.
//
//   load loop MILLIONS      runs a loop of two instructions so many million times, prints "ns NUMBER"
//   load spin               runs that loop for ever
//   load hog CPUS EVENTS    keeps so many instruction counters open on each CPU, so that others must share the hardware
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void loop(uint64_t turns) {
    __asm__ volatile("1: subs %0, %0, #1\n b.ne 1b" : "+r"(turns) : : "cc");
}

static int hog(int cpus, int events) {
    for (int cpu = 0; cpu < cpus; cpu++) {
        for (int event = 0; event < events; event++) {
            struct perf_event_attr attr;
            memset(&attr, 0, sizeof attr);
            attr.size = sizeof attr;
            attr.type = PERF_TYPE_HARDWARE;
            attr.config = PERF_COUNT_HW_INSTRUCTIONS;
            if (syscall(SYS_perf_event_open, &attr, -1, cpu, -1, 0) < 0) {
                perror("perf_event_open");
                return 1;
            }
        }
    }
    puts("hogging");
    fflush(stdout);
    pause();
    return 0;
}

int main(int count, char **words) {
    if (count == 3 && strcmp(words[1], "loop") == 0) {
        struct timespec start, end;
        clock_gettime(CLOCK_MONOTONIC, &start);
        loop(strtoull(words[2], NULL, 10) * 1000000);
        clock_gettime(CLOCK_MONOTONIC, &end);
        printf("ns %lld\n", (end.tv_sec - start.tv_sec) * 1000000000LL + end.tv_nsec - start.tv_nsec);
        return 0;
    }
    if (count == 2 && strcmp(words[1], "spin") == 0)
        for (;;) loop(UINT64_MAX);
    if (count == 4 && strcmp(words[1], "hog") == 0) return hog(atoi(words[2]), atoi(words[3]));
    fprintf(stderr, "usage: load loop MILLIONS | spin | hog CPUS EVENTS\n");
    return 2;
}
