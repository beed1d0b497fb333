/* Noisy neighbours for the lab: noise KIND INTENSITY SECONDS THREADS MIB [CGROUP_PROCS_FILE]...
 *
 *   llcprobe  random walk over MIB, more than the last-level cache (each load depends on the one before)
 *   dcopy     copies between two buffers of together MIB
 *   cpu       arithmetic in registers
 *
 * INTENSITY (0..1] is the share of each 20 ms in which a thread works; the cgroup's quota bounds it further.
 * The buffers are filled first, then the program joins the cgroups, prints `on` and begins: its preparation is no
 * noise. It ends itself after SECONDS, and with the process that started it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define SLICE_S 0.02
#define LINE 64

static double intensity, end_s;
static size_t buffer_bytes;
static volatile uint64_t sink;

struct state {
    char *from, *to;
    size_t at, lines;
    uint64_t number;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static char *buffer(size_t bytes)
{
    char *place = malloc(bytes);
    if (place == NULL) {
        fprintf(stderr, "noise: no memory for a buffer of %zu bytes\n", bytes);
        exit(1);
    }
    return memset(place, 1, bytes);
}

static uint64_t next(uint64_t *number) /* xorshift64: Marsaglia, Xorshift RNGs, 2003 */
{
    *number ^= *number << 13;
    *number ^= *number >> 7;
    return *number ^= *number << 17;
}

static void prepare_walk(struct state *s)
{
    s->from = buffer(buffer_bytes);
    s->lines = buffer_bytes / LINE;
}

/* Where to go next depends on what was just loaded, so the loads cannot overlap; the index is mixed with a running
 * number, so that filling the buffer with a permutation first (seconds, under a quota) is not needed. */
static void walk(struct state *s)
{
    for (int i = 0; i < 500; i++) {
        uint64_t *line = (uint64_t *)(s->from + s->at * LINE);
        *line += next(&s->number);
        s->at = (*line ^ s->number) % s->lines;
    }
}

static void prepare_copy(struct state *s)
{
    s->from = buffer(buffer_bytes / 2);
    s->to = buffer(buffer_bytes / 2);
    s->lines = buffer_bytes / 2 / LINE;
}

static void copy(struct state *s)
{
    size_t piece = 1024; /* lines */
    memcpy(s->to + s->at * LINE, s->from + s->at * LINE, piece * LINE);
    s->at = (s->at + piece) % (s->lines - piece);
}

static void prepare_cpu(struct state *s) { (void)s; }

static void count(struct state *s)
{
    for (int i = 0; i < 5000; i++)
        next(&s->number);
}

static const struct kind {
    const char *name;
    void (*prepare)(struct state *), (*work)(struct state *);
} KINDS[] = {{"llcprobe", prepare_walk, walk}, {"dcopy", prepare_copy, copy}, {"cpu", prepare_cpu, count}};

static const struct kind *kind;
static pthread_barrier_t filled, begun;

static void *neighbour(void *argument)
{
    struct state s = {.number = 88172645463325252ULL + (uint64_t)(uintptr_t)argument * 2654435761ULL};
    kind->prepare(&s);
    pthread_barrier_wait(&filled);
    pthread_barrier_wait(&begun);
    for (double begin = now(); begin < end_s; begin += SLICE_S) {
        if (now() > begin + SLICE_S) /* throttled or starved: catching up would be another load than was asked for */
            begin = now();
        while (now() < begin + SLICE_S * intensity && now() < end_s)
            kind->work(&s);
        double rest = begin + SLICE_S - now();
        if (intensity < 1 && rest > 0)
            nanosleep(&(struct timespec){.tv_nsec = (long)(rest * 1e9)}, NULL);
    }
    sink += s.number + s.at;
    return NULL;
}

static void join_cgroup(const char *procs_file)
{
    FILE *file = fopen(procs_file, "w");
    if (file == NULL || fprintf(file, "%d\n", getpid()) < 0 || fclose(file) != 0) {
        fprintf(stderr, "noise: %s: %s\n", procs_file, strerror(errno));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        return 1;
    for (size_t i = 0; argc >= 6 && i < sizeof KINDS / sizeof *KINDS; i++)
        if (strcmp(argv[1], KINDS[i].name) == 0)
            kind = &KINDS[i];
    intensity = argc >= 6 ? atof(argv[2]) : 0;
    double seconds = argc >= 6 ? atof(argv[3]) : 0;
    long threads = argc >= 6 ? atol(argv[4]) : 0;
    buffer_bytes = argc >= 6 ? (size_t)atol(argv[5]) << 20 : 0;
    if (kind == NULL || !(intensity > 0 && intensity <= 1) || !(seconds > 0) || threads < 1 || buffer_bytes == 0) {
        fprintf(stderr, "noise: expected llcprobe|dcopy|cpu INTENSITY(0..1] SECONDS THREADS MIB [PROCS_FILE]...\n");
        return 2;
    }
    pthread_barrier_init(&filled, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&begun, NULL, (unsigned)threads + 1);
    pthread_t *all = calloc((size_t)threads, sizeof *all);
    for (long i = 0; i < threads; i++)
        if (all == NULL || pthread_create(&all[i], NULL, neighbour, (void *)(uintptr_t)i) != 0) {
            fprintf(stderr, "noise: no thread: %s\n", strerror(errno));
            return 1;
        }
    pthread_barrier_wait(&filled);
    for (int i = 6; i < argc; i++)
        join_cgroup(argv[i]);
    end_s = now() + seconds;
    puts("on");
    fflush(stdout);
    pthread_barrier_wait(&begun);
    for (long i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    return 0;
}
