/* A peer that is killed in the middle of a conversation. */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#define ADDRESS "127.122.0.9"
#include "sockets.h"

static void lost_peer(pid_t child, int ports, int port, int listening)
{
    char byte;
    CHECK(write(ports, &port, sizeof port) == sizeof port);
    int fd = raccept(listening, NULL, NULL);
    CHECK(fd >= 0 && rread(fd, &byte, 1) == 1);
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
    /* The host says that it is gone, as it would close the socket of a process that is killed. */
    CHECK(rread(fd, &byte, 1) == 0);
    struct pollfd fds = { fd, POLLIN, 0 };
    CHECK(rpoll(&fds, 1, -1) == 1 && fds.revents & POLLIN);
    CHECK(!rclose(fd) && !rclose(listening));
}

static void converse(int ports)
{
    int port;
    CHECK(read(ports, &port, sizeof port) == sizeof port);
    CHECK(rwrite(connected(port), "", 1) == 1);
    pause();
}

int main(void)
{
    int ports[2], port;
    CHECK(!pipe(ports));
    /* Before anything else, so that it has nothing of ours. */
    pid_t child = fork();
    if (!child)
        converse(ports[0]);
    int listening = listener(&port);
    lost_peer(child, ports[1], port, listening);
    return 0;
}
