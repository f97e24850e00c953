/* Stream sockets at an address of the test, which says which: ADDRESS. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rsocket.h>
#include <unistd.h>

#include "common.h"

static inline struct sockaddr_in address(int port)
{
    struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(port) };
    CHECK(inet_pton(AF_INET, ADDRESS, &sin.sin_addr) == 1);
    return sin;
}

/* Listens at a port that is free; says which. */
static inline int listener(int *port)
{
    struct sockaddr_in sin = address(0);
    socklen_t len = sizeof sin;
    int on = 1, fd = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) >= 0);
    CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    CHECK(!rbind(fd, (struct sockaddr *)&sin, len) && !rlisten(fd, 4) && !rlisten(fd, 4));
    CHECK(!rgetsockname(fd, (struct sockaddr *)&sin, &len) && len == sizeof sin);
    CHECK((*port = ntohs(sin.sin_port)));
    return fd;
}

/* Connects. Nobody needs to accept for that. */
static inline int connected(int port)
{
    struct sockaddr_in sin = address(port), own = address(0);
    int fd = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
    CHECK(fd >= 0 && !rbind(fd, (struct sockaddr *)&own, sizeof own));
    CHECK(!rconnect(fd, (struct sockaddr *)&sin, sizeof sin));
    return fd;
}
