/* The descriptors that programs see are like those of the kernel's drivers. */
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_user_ioctl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"

/* What can be done with a descriptor of events now. */
static int ready(int fd)
{
    struct pollfd poll_fd = { fd, POLLIN | POLLOUT | POLLWRNORM | POLLPRI, 0 };
    CHECK(poll(&poll_fd, 1, 0) >= 0);

    struct epoll_event event = { .events = EPOLLIN | EPOLLOUT };
    int epoll = epoll_create1(0);
    CHECK(epoll >= 0 && !epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    event.events = 0;
    CHECK(epoll_wait(epoll, &event, 1, 0) >= 0);
    close(epoll);

    fd_set in, out;
    struct timeval now = { 0, 0 };
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(fd, &in);
    FD_SET(fd, &out);
    CHECK(select(fd + 1, &in, &out, NULL, &now) >= 0);

    CHECK(!(poll_fd.revents & ~(POLLIN | POLLRDNORM)));
    CHECK(!(event.events & ~(uint32_t)EPOLLIN));
    CHECK(!FD_ISSET(fd, &out));
    CHECK(!!(poll_fd.revents & POLLIN) == !!FD_ISSET(fd, &in));
    CHECK(!!(poll_fd.revents & POLLIN) == !!(event.events & EPOLLIN));
    return !!(poll_fd.revents & POLLIN);
}

static void commands(struct ibv_context *context)
{
    struct stat stat;
    CHECK(!fstat(context->cmd_fd, &stat) && S_ISCHR(stat.st_mode));
    struct ib_uverbs_ioctl_hdr header = { .length = sizeof header, .object_id = 0x1000 };
    CHECK(ioctl(context->cmd_fd, RDMA_VERBS_IOCTL, &header) == -1);
    CHECK(errno == EPROTONOSUPPORT);
    header.length++;
    CHECK(ioctl(context->cmd_fd, RDMA_VERBS_IOCTL, &header) == -1 && errno == EINVAL);
    CHECK(ioctl(context->cmd_fd, RDMA_VERBS_IOCTL, NULL) == -1 && errno == EFAULT);
    CHECK(ioctl(context->cmd_fd, FIONREAD, &header) == -1 && errno == ENOTTY);
    /* Other descriptors are the kernel's. */
    int pipes[2], waiting = -1;
    CHECK(!pipe(pipes) && write(pipes[1], "x", 1) == 1);
    CHECK(!ioctl(pipes[0], FIONREAD, &waiting) && waiting == 1);
    CHECK(ioctl(pipes[0], RDMA_VERBS_IOCTL, &header) == -1 && errno == ENOTTY);
    CHECK(ioctl(-1, RDMA_VERBS_IOCTL, &header) == -1 && errno == EBADF);
    close(pipes[0]);
    close(pipes[1]);
}

/* A context is found by any duplicate of its descriptor, and by no other. */
static void imports(struct ibv_context *context, struct ibv_context *other)
{
    struct ibv_pd *pd = ibv_alloc_pd(context), *same;
    CHECK(pd);
    struct ibv_context *imported = ibv_import_device(dup(dup(context->cmd_fd)));
    CHECK(imported && imported->device == context->device);
    CHECK((same = ibv_import_pd(imported, pd->handle)));
    CHECK(!ibv_import_pd(other, pd->handle) && errno == EINVAL);
    ibv_unimport_pd(same);
    CHECK(!ibv_dealloc_pd(pd));
    CHECK(!ibv_close_device(imported));
    int null = open("/dev/null", O_RDWR);
    CHECK(!ibv_import_device(null) && errno == EOPNOTSUPP);
    close(null);
    CHECK(!ibv_import_device(-1) && errno == EBADF);
}

static void events(struct end *end)
{
    struct ibv_cq *cq;
    void *context;
    int fd = end->channel->fd;
    CHECK(!ready(fd) && !ready(end->context->async_fd));
    for (int i = 0; i < 3; i++) {
        CHECK(!ibv_req_notify_cq(end->cq, 0));
        say(end, "ready");
        while (!ready(fd))
            ;
    }
    /* It is readable as long as an event waits, and no longer. */
    for (int i = 0; i < 3; i++) {
        CHECK(ready(fd));
        CHECK(!ibv_get_cq_event(end->channel, &cq, &context));
    }
    CHECK(!ready(fd));
    ibv_ack_cq_events(cq, 3);
}

static void connections(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_event *event;
    struct rdma_cm_id *id;
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9) };
    CHECK(channel && !ready(channel->fd));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000));
    while (!ready(channel->fd))
        ;
    CHECK(!rdma_get_cm_event(channel, &event) && !ready(channel->fd));
    CHECK(!rdma_ack_cm_event(event));
    CHECK(!rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

int main(void)
{
    struct ibv_context *context = open_nth(0), *other = open_nth(0);
    struct end *end = calloc(1, sizeof *end);
    commands(context);
    imports(context, other);
    make(end, context);
    connect_self(end);
    events(end);
    connections();
    destroy(end);
    CHECK(!ibv_close_device(other));
    CHECK(!ibv_close_device(context));
    return 0;
}
