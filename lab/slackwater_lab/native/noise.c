/* Noisy neighbours for the lab: noise KIND INTENSITY SECONDS THREADS MIB TARGET [CGROUP_PROCS_FILE]...
 *
 *   llcprobe   random walk over MIB, more than the last-level cache (each load depends on the one before)
 *   dcopy      copies between two buffers of together MIB
 *   cpu        arithmetic in registers
 *   disk       1 MiB writes, round and round in 64 MiB, flushed to the disk after each 16
 *   pagecache  drops 64 MiB of its own from the page cache and reads them back, over and over
 *   flood      datagrams of 1400 bytes to port 9 of the IPv4 address TARGET
 *   forks      16 children at a time, each writing to the memory that it shares with its parent
 *
 * Files have no name and are in the program's own folder: they go with the process. No thread has more than 16
 * children, and they end by themselves.
 * INTENSITY (0..1] is the share of each 20 ms in which a thread works; the cgroup's quota bounds it further.
 * The buffers are filled first, then the program joins the cgroups, prints `on` and begins: its preparation is no
 * noise. It ends itself after SECONDS, and with the process that started it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLICE_S 0.02
#define LINE 64
#define FILE_BYTES ((size_t)64 << 20)
#define PIECE_BYTES ((size_t)1 << 20)
#define FLUSH_BYTES ((size_t)16 << 20)
#define PAGE_BYTES 4096
#define CHILDREN 16
#define DATAGRAM_BYTES 1400

static double intensity, end_s;
static size_t buffer_bytes;
static const char *folder;
static struct sockaddr_in target = {.sin_family = AF_INET};
static volatile uint64_t sink;

struct state {
    char *from, *to;
    size_t at, lines;
    uint64_t number;
    int file;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void fail(const char *what)
{
    fprintf(stderr, "noise: %s: %s\n", what, strerror(errno));
    exit(1);
}

static char *buffer(size_t bytes)
{
    char *place = aligned_alloc(PAGE_BYTES, bytes);
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

static int unnamed_file(void)
{
    int file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0 && errno == EOPNOTSUPP) { /* such as an overlayfs before Linux 6.1 */
        char name[4096];
        snprintf(name, sizeof name, "%s/noise-XXXXXX", folder);
        file = mkostemp(name, O_CLOEXEC);
        if (file >= 0)
            unlink(name);
    }
    if (file < 0)
        fail(folder);
    return file;
}

static void prepare_disk(struct state *s)
{
    s->from = buffer(PIECE_BYTES);
    s->file = unnamed_file();
}

static void write_piece(struct state *s)
{
    if (pwrite(s->file, s->from, PIECE_BYTES, (off_t)s->at) < 0)
        fail("writing");
    s->at = (s->at + PIECE_BYTES) % FILE_BYTES;
    if (s->at % FLUSH_BYTES == 0 && fdatasync(s->file) != 0)
        fail("writing");
}

static void prepare_page_cache(struct state *s)
{
    s->from = buffer(PIECE_BYTES);
    s->file = unnamed_file();
    for (size_t at = 0; at < FILE_BYTES; at += PIECE_BYTES)
        if (pwrite(s->file, s->from, PIECE_BYTES, (off_t)at) < 0)
            fail("writing");
    if (fdatasync(s->file) != 0)
        fail("writing");
}

static void read_again(struct state *s)
{
    posix_fadvise(s->file, (off_t)s->at, (off_t)PIECE_BYTES, POSIX_FADV_DONTNEED);
    if (pread(s->file, s->from, PIECE_BYTES, (off_t)s->at) < 0)
        fail("reading");
    s->at = (s->at + PIECE_BYTES) % FILE_BYTES;
}

static void prepare_flood(struct state *s)
{
    s->from = buffer(PAGE_BYTES);
    s->file = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s->file < 0)
        fail("a socket");
}

/* Answers that the port is closed, and full queues, are no failures of a flood. */
static void flood(struct state *s)
{
    for (int i = 0; i < 64; i++)
        sendto(s->file, s->from, DATAGRAM_BYTES, MSG_DONTWAIT, (struct sockaddr *)&target, sizeof target);
}

static void prepare_forks(struct state *s)
{
    s->from = buffer(8 * PIECE_BYTES);
}

static void forks(struct state *s)
{
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++)
        if ((children[i] = fork()) == 0) {
            for (size_t at = 0; at < PIECE_BYTES; at += PAGE_BYTES)
                ((volatile char *)s->from)[at]++;
            _exit(0);
        }
    for (int i = 0; i < CHILDREN; i++)
        if (children[i] > 0)
            waitpid(children[i], NULL, 0);
}

static const struct kind {
    const char *name;
    void (*prepare)(struct state *), (*work)(struct state *);
} KINDS[] = {
    {"llcprobe", prepare_walk, walk},
    {"dcopy", prepare_copy, copy},
    {"cpu", prepare_cpu, count},
    {"disk", prepare_disk, write_piece},
    {"pagecache", prepare_page_cache, read_again},
    {"flood", prepare_flood, flood},
    {"forks", prepare_forks, forks},
};

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
    if (file == NULL || fprintf(file, "%d\n", getpid()) < 0 || fclose(file) != 0)
        fail(procs_file);
}

int main(int argc, char **argv)
{
    pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        return 1;
    for (size_t i = 0; argc >= 7 && i < sizeof KINDS / sizeof *KINDS; i++)
        if (strcmp(argv[1], KINDS[i].name) == 0)
            kind = &KINDS[i];
    intensity = argc >= 7 ? atof(argv[2]) : 0;
    double seconds = argc >= 7 ? atof(argv[3]) : 0;
    long threads = argc >= 7 ? atol(argv[4]) : 0;
    buffer_bytes = argc >= 7 ? (size_t)atol(argv[5]) << 20 : 0;
    folder = dirname(strdup(argv[0]));
    target.sin_port = htons(9);
    bool addressed = argc >= 7 && inet_pton(AF_INET, argv[6], &target.sin_addr) == 1;
    if (kind == NULL || !addressed || !(intensity > 0 && intensity <= 1) || !(seconds > 0) || threads < 1 || buffer_bytes == 0) {
        fprintf(stderr, "noise: expected KIND INTENSITY(0..1] SECONDS THREADS MIB TARGET [PROCS_FILE]...; kinds:");
        for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
            fprintf(stderr, " %s", KINDS[i].name);
        fputc('\n', stderr);
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
    puts("filled");
    fflush(stdout);
    if (getchar() != '\n') /* nobody is there any more to say when */
        return 1;
    for (int i = 7; i < argc; i++)
        join_cgroup(argv[i]);
    end_s = now() + seconds;
    puts("on");
    fflush(stdout);
    pthread_barrier_wait(&begun);
    for (long i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    return 0;
}
