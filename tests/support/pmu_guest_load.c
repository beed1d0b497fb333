// Work of known size for a guest with hardware counters.
//
//   load loop MILLIONS      runs a loop of two instructions so many million times, prints "ns NUMBER"
//   load spin               runs that loop for ever
//   load hog CPUS EVENTS    keeps so many instruction counters open on each CPU, so that others must share the hardware
//   load serve PORT TURNS   answers HTTP requests, each after so many thousand turns of that loop, more or less
//   load ask PORT RATE      asks such a server so many times a second on one connection, until it is killed
//   load bus PORT           takes a NATS client as a server would, and prints each message that it publishes on a line, in hexadecimal
#include <arpa/inet.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

static int socket_at(int port, int listens) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(port)};
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int end = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(end, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (listens ? bind(end, (void *)&place, sizeof place) || listen(end, 8) : connect(end, (void *)&place, sizeof place)) {
        perror("socket");
        exit(1);
    }
    return end;
}

static uint64_t dice(uint64_t below) {
    static uint64_t state = 88172645463325252;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

_Noreturn static void serve(int port, uint64_t turns) {
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n";
    char text[4096];
    for (int listener = socket_at(port, 1);;) {
        int client = accept(listener, NULL, NULL);
        while (client >= 0 && read(client, text, sizeof text) > 0) {
            loop((turns * 3 / 4 + dice(turns / 2)) * 1000);
            if (write(client, answer, sizeof answer - 1) < 0) break;
        }
        close(client);
    }
}

static int ask(int port, uint64_t rate) {
    static const char request[] = "GET /page HTTP/1.1\r\nHost: guest\r\n\r\n";
    char text[4096];
    for (int server = socket_at(port, 0);;) {
        struct timespec wait = {0, 1000000000 / rate / 2 + dice(1000000000 / rate)};
        nanosleep(&wait, NULL);
        if (write(server, request, sizeof request - 1) < 0 || read(server, text, sizeof text) <= 0) return 1;
    }
}

static int bus(int port) {
    static const char info[] =
        "INFO {\"server_id\":\"g\",\"version\":\"2.9.10\",\"proto\":1,\"headers\":true,\"max_payload\":1048576}\r\n";
    static char line[4096], printed[1 << 22];
    static unsigned char message[1 << 20];
    setvbuf(stdout, printed, _IOFBF, sizeof printed); // so that a line is written at once
    for (int listener = socket_at(port, 1);;) {
        int client = accept(listener, NULL, NULL);
        FILE *in = fdopen(client, "r");
        if (in == NULL || write(client, info, sizeof info - 1) < 0) return 1;
        while (fgets(line, sizeof line, in)) {
            if (strncmp(line, "PING", 4) == 0 && write(client, "PONG\r\n", 6) < 0) break;
            if (strncmp(line, "PUB ", 4) != 0) continue;
            size_t size = strtoul(strrchr(line, ' '), NULL, 10); // the last word
            if (size > sizeof message || fread(message, 1, size, in) < size) break;
            for (size_t at = 0; at < size; at++) printf("%02x", message[at]);
            puts("");
            fflush(stdout);
        }
        fclose(in);
    }
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
    if (count == 4 && strcmp(words[1], "serve") == 0) serve(atoi(words[2]), strtoull(words[3], NULL, 10));
    if (count == 4 && strcmp(words[1], "ask") == 0) return ask(atoi(words[2]), strtoull(words[3], NULL, 10));
    if (count == 3 && strcmp(words[1], "bus") == 0) return bus(atoi(words[2]));
    fprintf(stderr, "usage: load loop MILLIONS | spin | hog CPUS EVENTS | serve PORT TURNS | ask PORT RATE | bus PORT\n");
    return 2;
}
