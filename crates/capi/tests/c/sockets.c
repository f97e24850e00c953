/* rsockets of a process with itself: what calls answer, and what is refused. */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#define ADDRESS "127.122.0.8"
#include "sockets.h"

#define FAILS(call, error) CHECK((call) == -1 && errno == (error))

static void pair(int ends[2])
{
    struct sockaddr_in of, seen;
    socklen_t of_len = sizeof of, seen_len = sizeof seen;
    int port, listening = listener(&port);
    ends[0] = connected(port);
    ends[1] = raccept(listening, (struct sockaddr *)&seen, &seen_len);
    CHECK(ends[1] >= 0 && !rgetsockname(ends[0], (struct sockaddr *)&of, &of_len));
    CHECK(of.sin_port == seen.sin_port && of.sin_addr.s_addr == seen.sin_addr.s_addr);
    CHECK(!rclose(listening));
}

static void refused(void)
{
    struct sockaddr_in sin = address(9);
    struct sockaddr nowhere = { .sa_family = AF_UNIX };
    char bytes[4] = { 0 };
    socklen_t len = sizeof bytes;
    int port, fd = rsocket(AF_INET, SOCK_STREAM, 0), listening = listener(&port);
    FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), EOPNOTSUPP);
    FAILS(rsocket(AF_INET, SOCK_RAW, 0), EOPNOTSUPP);
    FAILS(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EOPNOTSUPP);
    FAILS(rsend(0, bytes, 4, 0), EBADF);
    FAILS(rrecv(-1, bytes, 4, 0), EBADF);
    FAILS(rsend(fd, bytes, 4, 0), ENOTCONN);
    FAILS(rrecv(fd, bytes, 4, 0), ENOTCONN);
    FAILS(rsendto(fd, bytes, 4, 0, (struct sockaddr *)&sin, sizeof sin), EISCONN);
    FAILS(rshutdown(fd, SHUT_WR), ENOTCONN);
    FAILS(raccept(fd, NULL, NULL), EINVAL);
    FAILS(rgetpeername(fd, (struct sockaddr *)&sin, &len), ENOTCONN);
    FAILS(rbind(fd, &nowhere, sizeof nowhere), EAFNOSUPPORT);
    FAILS(rbind(fd, (struct sockaddr *)&sin, 4), EINVAL);
    FAILS(rconnect(fd, NULL, 0), EINVAL);
    FAILS(rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, bytes, 2), EINVAL);
    FAILS(rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, NULL, 4), EFAULT);
    FAILS(rsetsockopt(fd, 4711, 1, bytes, 4), EOPNOTSUPP);
    FAILS(rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, bytes, 4), EINVAL);
    FAILS(rgetsockopt(fd, 4711, 1, bytes, &len), EOPNOTSUPP);
    FAILS(rfcntl(fd, F_DUPFD, 0), EOPNOTSUPP);
    FAILS(riomap(fd, bytes, 4, PROT_WRITE, 0, 0), EINVAL);
    FAILS(riounmap(fd, bytes, 4), EINVAL);
    CHECK(riowrite(fd, bytes, 4, 0, 0) == (size_t)-1 && errno == ENOTCONN);
    FAILS(rconnect(listening, (struct sockaddr *)&sin, sizeof sin), EOPNOTSUPP);
    sin = address(port);
    FAILS(rbind(fd, (struct sockaddr *)&sin, sizeof sin), EADDRINUSE);
    CHECK(!rclose(listening));
    FAILS(rclose(listening), EBADF);
    struct sockaddr_in own = address(0);
    CHECK(!rbind(fd, (struct sockaddr *)&own, sizeof own));
    FAILS(rconnect(fd, (struct sockaddr *)&sin, sizeof sin), ECONNREFUSED);
    FAILS(rconnect(fd, (struct sockaddr *)&sin, sizeof sin), ENOTCONN);
    CHECK(!rclose(fd));
}

static void options(void)
{
    static const struct {
        int level, name, value, then;
    } all[] = {
        { SOL_SOCKET, SO_SNDBUF, 10000, 20000 },   { SOL_SOCKET, SO_RCVBUF, 10000, 20000 },
        { SOL_SOCKET, SO_KEEPALIVE, 1, 1 },        { SOL_SOCKET, SO_OOBINLINE, 1, 1 },
        { IPPROTO_TCP, TCP_NODELAY, 1, 1 },        { IPPROTO_TCP, TCP_KEEPIDLE, 5, 5 },
        { IPPROTO_IP, IP_TOS, 8, 8 },              { SOL_RDMA, RDMA_SQSIZE, 64, 64 },
        { SOL_RDMA, RDMA_RQSIZE, 1, 16 },          { SOL_RDMA, RDMA_INLINE, 100000, 1024 },
        { SOL_RDMA, RDMA_IOMAPSIZE, 600, 512 },
    };
    int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(rfcntl(fd, F_GETFL) == (O_RDWR | O_NONBLOCK) && rfcntl(fd, F_GETFD) == FD_CLOEXEC);
    CHECK(!rfcntl(fd, F_SETFL, 0) && rfcntl(fd, F_GETFL) == O_RDWR);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int value = -1;
        socklen_t len = sizeof value;
        CHECK(!rsetsockopt(fd, all[i].level, all[i].name, &all[i].value, sizeof(int)));
        CHECK(!rgetsockopt(fd, all[i].level, all[i].name, &value, &len));
        if (value != all[i].then || len != sizeof value)
            fprintf(stderr, "option %zu is %d\n", i, value);
        CHECK(value == all[i].then && len == sizeof value);
    }
    CHECK(!rclose(fd));
}

/* Bytes that cannot be confused with those at another place. */
static unsigned char byte_at(size_t at)
{
    return (unsigned char)(at * 31 + (at >> 8) * 17 + (at >> 16));
}

static void reading(void)
{
    int ends[2];
    char bytes[32] = { 0 }, front[3], back[6];
    struct iovec out[] = { { "one ", 4 }, { "", 0 }, { "two ", 4 }, { "three", 5 } };
    struct iovec in[] = { { front, 3 }, { back, 6 } };
    struct msghdr message = { .msg_iov = in, .msg_iovlen = 2 };
    pair(ends);
    FAILS(rrecv(ends[0], bytes, 1, MSG_DONTWAIT), EAGAIN);
    CHECK(!rfcntl(ends[0], F_SETFL, O_NONBLOCK));
    FAILS(rread(ends[0], bytes, 1), EAGAIN);
    CHECK(!rfcntl(ends[0], F_SETFL, 0));
    CHECK(rwritev(ends[1], out, 4) == 13);
    CHECK(rrecv(ends[0], bytes, 13, MSG_WAITALL | MSG_PEEK) > 0);
    CHECK(rrecv(ends[0], bytes, 4, MSG_WAITALL) == 4 && !memcmp(bytes, "one ", 4));
    CHECK(rrecvmsg(ends[0], &message, MSG_WAITALL) == 9);
    CHECK(!memcmp(front, "two", 3) && !memcmp(back, " three", 6));
    CHECK(rwrite(ends[1], "", 0) == 0 && rread(ends[0], bytes, 0) == 0);
    CHECK(!rclose(ends[0]) && !rclose(ends[1]));
}

static void polling(void)
{
    int ends[2], pipes[2], port, listening = listener(&port);
    char byte;
    pair(ends);
    CHECK(!pipe(pipes));
    struct pollfd fds[] = {
        { ends[0], POLLIN, 0 }, { pipes[0], POLLIN, 0 }, { -1, POLLIN, 0 }, { listening, POLLIN, 0 }
    };
    CHECK(rpoll(fds, 4, 0) == 0 && rpoll(fds, 4, 10) == 0);
    CHECK(write(pipes[1], "", 1) == 1);
    CHECK(rpoll(fds, 4, -1) == 1 && fds[1].revents == POLLIN && !fds[0].revents);
    CHECK(rwrite(ends[1], "", 1) == 1 && read(pipes[0], &byte, 1) == 1);
    CHECK(rpoll(fds, 4, -1) == 1 && fds[0].revents == POLLIN && !fds[1].revents);
    CHECK(rread(ends[0], &byte, 1) == 1);
    int asking = connected(port);
    CHECK(rpoll(fds, 4, -1) == 1 && fds[3].revents == POLLIN);
    struct timeval soon = { .tv_usec = 1000 };
    fd_set readers, writers;
    FD_ZERO(&readers);
    FD_ZERO(&writers);
    FD_SET(listening, &readers);
    FD_SET(ends[0], &readers);
    FD_SET(ends[0], &writers);
    CHECK(rselect(1024, &readers, &writers, NULL, &soon) == 2);
    CHECK(FD_ISSET(listening, &readers) && !FD_ISSET(ends[0], &readers));
    CHECK(FD_ISSET(ends[0], &writers) && !rclose(asking) && !rclose(listening));

    /* Until nothing fits any more, and then until it does again. */
    static char much[100000];
    size_t sent = 0, got = 0;
    ssize_t some;
    CHECK(!rfcntl(ends[0], F_SETFL, O_NONBLOCK));
    while ((some = rwrite(ends[0], much, sizeof much)) > 0)
        sent += some;
    CHECK(errno == EAGAIN && sent >= sizeof much);
    fds[0].events = POLLOUT;
    CHECK(rpoll(fds, 1, 0) == 0);
    while (got < sent) {
        CHECK((some = rread(ends[1], much, sizeof much)) > 0);
        got += some;
    }
    CHECK(rpoll(fds, 1, -1) == 1 && fds[0].revents == POLLOUT);
    FAILS(rread(ends[0], &byte, 1), EAGAIN);
    CHECK(!rclose(ends[0]) && !rclose(ends[1]));
    close(pipes[0]), close(pipes[1]);
}

enum { MUCH = 4 << 20 };

static void *writes(void *fd)
{
    static unsigned char bytes[MUCH];
    for (size_t i = 0; i < MUCH; i++)
        bytes[i] = byte_at(i);
    for (size_t sent = 0; sent < MUCH;) {
        ssize_t some = rwrite(*(int *)fd, bytes + sent, MUCH - sent < 70001 ? MUCH - sent : 70001);
        CHECK(some > 0);
        sent += some;
    }
    return NULL;
}

static void *reads(void *fd)
{
    unsigned char *bytes = malloc(50021);
    for (size_t got = 0; got < MUCH;) {
        ssize_t some = rread(*(int *)fd, bytes, 50021);
        CHECK(some > 0);
        for (ssize_t i = 0; i < some; i++)
            CHECK(bytes[i] == byte_at(got + i));
        got += some;
    }
    free(bytes);
    return NULL;
}

/* Both ways at once, by four threads that wait for the same completions in twos. */
static void both_ways(void)
{
    int ends[2];
    pthread_t threads[4];
    pair(ends);
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_create(&threads[i], NULL, i & 1 ? reads : writes, &ends[i / 2]));
    for (int i = 0; i < 4; i++)
        CHECK(!pthread_join(threads[i], NULL));
    CHECK(!rclose(ends[0]) && !rclose(ends[1]));
}

static void shutting_down(void)
{
    int ends[2];
    char byte = 7;
    pair(ends);
    struct pollfd fds = { ends[1], POLLIN, 0 };
    CHECK(rwrite(ends[0], &byte, 1) == 1 && !rshutdown(ends[0], SHUT_WR));
    FAILS(rwrite(ends[0], &byte, 1), ECONNRESET);
    CHECK(rread(ends[1], &byte, 1) == 1 && rread(ends[1], &byte, 1) == 0);
    CHECK(rpoll(&fds, 1, -1) == 1 && fds.revents == POLLIN);
    CHECK(rwrite(ends[1], &byte, 1) == 1 && rread(ends[0], &byte, 1) == 1);
    CHECK(rwrite(ends[1], &byte, 1) == 1 && !rclose(ends[1]));
    /* What was sent before the end can be read. */
    CHECK(rread(ends[0], &byte, 1) == 1 && rread(ends[0], &byte, 1) == 0);
    fds.fd = ends[0];
    CHECK(rpoll(&fds, 1, -1) == 1 && fds.revents == (POLLIN | POLLHUP));
    CHECK(!rclose(ends[0]));
}

static void mapping(void)
{
    static unsigned char target[100000], source[100000];
    int port, maps = 1, listening = listener(&port);
    struct sockaddr_in sin = address(port), own = address(0);
    char byte = 1;
    int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(!rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof maps));
    CHECK(!rbind(fd, (struct sockaddr *)&own, sizeof own));
    CHECK(!rconnect(fd, (struct sockaddr *)&sin, sizeof sin));
    int peer = raccept(listening, NULL, NULL);
    CHECK(riomap(peer, target, sizeof target, PROT_WRITE, 0, 4096) == 4096);
    FAILS(riomap(peer, source, sizeof source, PROT_WRITE, 0, -1), ENOMEM);
    FAILS(riomap(peer, source, sizeof source, PROT_READ, 0, -1), EINVAL);
    CHECK(riowrite(fd, source, 1, 4096, 0) == 0);
    /* With the next message the other end learns of it. */
    CHECK(rwrite(peer, &byte, 1) == 1 && rread(fd, &byte, 1) == 1);
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = byte_at(i);
    CHECK(riowrite(fd, source, sizeof source, 4096, 0) == sizeof source);
    CHECK(riowrite(fd, source, 10, 4096 + sizeof target - 4, 0) == 4);
    CHECK(riowrite(fd, source, 10, 4095, 0) == 0);
    CHECK(rwrite(fd, &byte, 1) == 1 && rread(peer, &byte, 1) == 1);
    CHECK(!memcmp(target, source, sizeof target - 4) && !memcmp(target + 99996, source, 4));
    CHECK(!riounmap(peer, target, sizeof target));
    FAILS(riounmap(peer, target, sizeof target), EINVAL);
    /* Memory that is not mapped any more cannot be written to, and the connection is over. */
    CHECK(riowrite(fd, source, 1, 4096, 0) == 1);
    CHECK(rread(fd, &byte, 1) == -1 && (errno == EIO || errno == ECONNRESET));
    CHECK(!rclose(fd) && !rclose(peer) && !rclose(listening));
}

/* Of rdma-core 65. */
int repoll_create(int flags);
int repoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int repoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout);

static void *adds(void *args)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = 3 };
    CHECK(!repoll_ctl(((int *)args)[0], EPOLL_CTL_ADD, ((int *)args)[1], &event));
    return NULL;
}

static void epolling(void)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = 1 }, found[4];
    int ends[2], pipes[2], set = repoll_create(0);
    char byte;
    pair(ends);
    CHECK(set >= 0 && !pipe(pipes));
    FAILS(repoll_ctl(ends[0], EPOLL_CTL_ADD, ends[1], &event), EBADF);
    FAILS(repoll_ctl(set, EPOLL_CTL_ADD, set, &event), EINVAL);
    FAILS(repoll_ctl(set, EPOLL_CTL_MOD, ends[0], &event), ENOENT);
    FAILS(repoll_ctl(set, 99, ends[0], &event), EINVAL);
    FAILS(repoll_wait(set, found, 0, 0), EINVAL);
    CHECK(!repoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event));
    FAILS(repoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event), EEXIST);
    event = (struct epoll_event){ .events = EPOLLIN | EPOLLONESHOT, .data.u32 = 2 };
    CHECK(!repoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &event));
    CHECK(repoll_wait(set, found, 4, 0) == 0 && repoll_wait(set, found, 4, 5) == 0);
    CHECK(write(pipes[1], "", 1) == 1 && repoll_wait(set, found, 4, -1) == 1);
    CHECK(found[0].events == EPOLLIN && found[0].data.u32 == 2);
    CHECK(repoll_wait(set, found, 4, 0) == 0);
    CHECK(!repoll_ctl(set, EPOLL_CTL_MOD, pipes[0], &event) && rwrite(ends[1], "", 1) == 1);
    struct pollfd fds = { ends[0], POLLIN, 0 };
    CHECK(rpoll(&fds, 1, -1) == 1 && repoll_wait(set, found, 4, -1) == 2);
    CHECK(found[0].data.u32 + found[1].data.u32 == 3 && rread(ends[0], &byte, 1) == 1);
    CHECK(!repoll_ctl(set, EPOLL_CTL_DEL, pipes[0], NULL));
    /* Who waits sees what comes later. */
    CHECK(rwrite(ends[0], "", 1) == 1);
    pthread_t thread;
    int args[] = { set, ends[1] };
    CHECK(!pthread_create(&thread, NULL, adds, args));
    CHECK(repoll_wait(set, found, 4, -1) == 1 && found[0].data.u32 == 3);
    CHECK(!pthread_join(thread, NULL) && !rclose(set));
    FAILS(repoll_wait(set, found, 4, 0), EBADF);
    CHECK(!rclose(ends[0]) && !rclose(ends[1]) && !close(pipes[0]) && !close(pipes[1]));
}

static void *accepts(void *fd)
{
    int accepted = raccept(*(int *)fd, NULL, NULL);
    CHECK(accepted == -1 && (errno == EINVAL || errno == EBADF));
    return NULL;
}

static void *takes(void *fd)
{
    char byte;
    CHECK(rread(*(int *)fd, &byte, 1) <= 0);
    return NULL;
}

/* Threads that wait at a socket when another closes it do not wait for ever. */
static void closing(void)
{
    int ends[2], port, listening = listener(&port);
    pthread_t accepting, taking;
    pair(ends);
    CHECK(!pthread_create(&accepting, NULL, accepts, &listening));
    CHECK(!pthread_create(&taking, NULL, takes, &ends[0]));
    usleep(10000);
    CHECK(!rclose(listening) && !pthread_join(accepting, NULL));
    CHECK(!rclose(ends[0]) && !pthread_join(taking, NULL) && !rclose(ends[1]));
}

static int datagram_socket(struct sockaddr_in *own)
{
    socklen_t len = sizeof *own;
    int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
    *own = address(0);
    CHECK(fd >= 0 && !rbind(fd, (struct sockaddr *)own, len));
    CHECK(!rgetsockname(fd, (struct sockaddr *)own, &len) && own->sin_port);
    return fd;
}

/* The first goes through the kernel, the others from queue pair to queue pair. */
static void datagrams(void)
{
    struct sockaddr_in a, b, from;
    socklen_t len = sizeof from;
    char bytes[3000] = "datagram";
    int fd = datagram_socket(&a), peer = datagram_socket(&b);
    struct pollfd fds = { peer, POLLIN | POLLOUT, 0 };
    FAILS(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), EOPNOTSUPP);
    FAILS(rsend(fd, bytes, 4, 0), EDESTADDRREQ);
    FAILS(rrecv(fd, bytes, 4, MSG_DONTWAIT), EAGAIN);
    FAILS(rlisten(fd, 1), EOPNOTSUPP);
    FAILS(rshutdown(fd, SHUT_RDWR), EOPNOTSUPP);
    FAILS(riomap(fd, bytes, 4, PROT_WRITE, 0, 0), EOPNOTSUPP);
    FAILS(rgetpeername(fd, (struct sockaddr *)&from, &len), ENOTCONN);
    FAILS(rsendto(fd, bytes, 3000, 0, (struct sockaddr *)&b, sizeof b), EMSGSIZE);
    CHECK(!rconnect(fd, (struct sockaddr *)&b, sizeof b));
    CHECK(!rgetpeername(fd, (struct sockaddr *)&from, &len) && from.sin_port == b.sin_port);
    CHECK(rpoll(&fds, 1, 0) == 1 && fds.revents == POLLOUT);
    for (int i = 0; i < 100; i++) {
        bytes[0] = i;
        CHECK(rsend(fd, bytes, 1 + i, 0) == 1 + i);
        fds.events = POLLIN;
        CHECK(rpoll(&fds, 1, -1) == 1 && fds.revents == POLLIN);
        bytes[0] = -1;
        CHECK(rrecv(peer, bytes, 1, MSG_PEEK) == 1 && bytes[0] == i);
        len = sizeof from;
        CHECK(rrecvfrom(peer, bytes, 3000, 0, (struct sockaddr *)&from, &len) == 1 + i);
        CHECK(bytes[0] == i && len == sizeof from && from.sin_port == a.sin_port);
        CHECK(from.sin_addr.s_addr == a.sin_addr.s_addr);
        CHECK(rsendto(peer, bytes, 2, 0, (struct sockaddr *)&from, len) == 2);
        /* What does not fit is lost. */
        CHECK(rrecv(fd, bytes, 1, 0) == 1 && bytes[0] == i);
        FAILS(rrecv(fd, bytes, 1, MSG_DONTWAIT), EAGAIN);
    }
    CHECK(rsend(fd, bytes, 0, 0) == 0 && rrecv(peer, bytes, 1, 0) == 0);
    CHECK(!rclose(fd) && !rclose(peer));
}

int main(void)
{
    refused();
    options();
    reading();
    polling();
    both_ways();
    shutting_down();
    mapping();
    closing();
    datagrams();
    epolling();
    return 0;
}
