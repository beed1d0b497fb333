// An application on one core, for tests of policies on the node.
//
//   hot_thread              is busy until it is killed
//   hot_thread SOCKET CORE  runs on this core; each line of its input is a line for the socket
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count == 1) {
        for (;;) {
            __asm__ volatile("");
        }
    }
    if (count != 3) {
        return 2;
    }
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(atoi(words[2]), &cores);
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    strncpy(place.sun_path, words[1], sizeof place.sun_path - 1);
    int to = socket(AF_UNIX, SOCK_STREAM, 0);
    if (sched_setaffinity(0, sizeof cores, &cores) || connect(to, (struct sockaddr *)&place, sizeof place)) {
        perror("hot_thread");
        return 1;
    }
    char line[100];
    while (fgets(line, sizeof line, stdin)) {
        if (write(to, line, strlen(line)) < 0) {
            return 1;
        }
    }
    return 0;
}
