/* A program that asks the RDMA subsystem by netlink, without a library: what its sockets are like. */
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <rdma/rdma_netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno));          \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static char answer[65536];

static struct nlmsghdr ask(int op, int flags)
{
    return (struct nlmsghdr){
        .nlmsg_len = sizeof(struct nlmsghdr),
        .nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, op),
        .nlmsg_flags = NLM_F_REQUEST | flags,
        .nlmsg_seq = 7,
    };
}

/* Receives a message, which must come from the kernel, to this socket. */
static struct nlmsghdr *receive(int fd)
{
    struct sockaddr_nl from = { .nl_pid = 99 }, own = { 0 };
    socklen_t len = sizeof own;
    CHECK(!getsockname(fd, (struct sockaddr *)&own, &len) && own.nl_family == AF_NETLINK);
    struct iovec iov = { answer, sizeof answer };
    struct msghdr msg = { &from, sizeof from, &iov, 1 };
    CHECK(recvmsg(fd, &msg, 0) >= (int)sizeof(struct nlmsghdr));
    CHECK(from.nl_family == AF_NETLINK && from.nl_pid == 0 && msg.msg_namelen == sizeof from);
    struct nlmsghdr *header = (struct nlmsghdr *)answer;
    CHECK(header->nlmsg_seq == 7 && header->nlmsg_pid == own.nl_pid && own.nl_pid != 0);
    return header;
}

/* Lists the devices on a socket, with each way to send and to receive. */
static void list(int fd)
{
    struct nlmsghdr request = ask(RDMA_NLDEV_CMD_GET, NLM_F_DUMP);
    struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
    struct iovec iov[2] = { { &request, 8 }, { (char *)&request + 8, sizeof request - 8 } };
    struct msghdr msg = { &kernel, sizeof kernel, iov, 2 };
    CHECK(sendmsg(fd, &msg, 0) == sizeof request);
    CHECK(receive(fd)->nlmsg_type == RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET));
    CHECK(receive(fd)->nlmsg_type == NLMSG_DONE);
    CHECK(send(fd, &request, sizeof request, 0) == sizeof request);
    CHECK(recv(fd, answer, sizeof answer, 0) > (int)sizeof request);
    CHECK(recvfrom(fd, answer, sizeof answer, 0, (struct sockaddr *)&kernel,
               &(socklen_t){ sizeof kernel }) == 20 && kernel.nl_pid == 0);
    CHECK(recv(fd, answer, sizeof answer, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

int main(void)
{
    struct sockaddr_nl any = { .nl_family = AF_NETLINK };
    int on = 1;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    CHECK(!setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on));
    CHECK(!bind(fd, (struct sockaddr *)&any, sizeof any));
    list(fd);
    /* One that was never bound. */
    int other = socket(AF_NETLINK, SOCK_DGRAM | SOCK_NONBLOCK, NETLINK_RDMA);
    CHECK(other >= 0);
    struct pollfd poller = { other, POLLIN };
    CHECK(poll(&poller, 1, 0) == 0);
    list(other);

    /* An error comes with the header of the request, and can be waited for. */
    struct nlmsghdr request = ask(RDMA_NLDEV_CMD_SET, NLM_F_ACK);
    CHECK(send(other, &request, sizeof request, 0) == sizeof request);
    CHECK(poll(&poller, 1, 0) == 1 && poller.revents == POLLIN);
    struct nlmsghdr *header = receive(other);
    struct nlmsgerr *error = NLMSG_DATA(header);
    CHECK(header->nlmsg_type == NLMSG_ERROR && error->error == -EOPNOTSUPP);
    CHECK(!memcmp(&error->msg, &request, sizeof request));
    request = ask(77, 0);
    CHECK(send(other, &request, sizeof request, 0) == sizeof request);
    error = NLMSG_DATA(receive(other));
    CHECK(error->error == -EINVAL);

    /* The descriptor is that of another file afterwards, and no other socket is affected. */
    CHECK(!close(fd));
    int route = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    CHECK(route == fd);
    struct { struct nlmsghdr header; struct rtgenmsg any; } links = {
        { sizeof links, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 7, 0 }, { AF_UNSPEC },
    };
    CHECK(send(route, &links, sizeof links, 0) == sizeof links);
    CHECK(recv(route, answer, sizeof answer, 0) > 0);
    CHECK(((struct nlmsghdr *)answer)->nlmsg_type == RTM_NEWLINK);
    list(other);
    CHECK(!close(route));
    /* Now the end that answers may get the number of the first socket. */
    list(other);
    int pair[2];
    CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    CHECK(send(pair[0], "x", 1, 0) == 1 && recv(pair[1], answer, 1, 0) == 1 && *answer == 'x');
    return 0;
}
