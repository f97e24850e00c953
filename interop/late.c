/*
 * Goes ahead of librdmacm in a client that does something too soon, and lets it wait before that.
 *
 * perftest with -R meets its server by one connection and measures on another, for which the server
 * listens only after both have agreed to go on. Who calls sooner is refused; the program would try
 * again, but with ids that it has freed. An emulated server is later than any client.
 *
 * mckey leaves its group and ends as soon as it has posted its messages. The driver of Linux 6.12
 * sends them later than that, in a thread of its own, and those of a queue pair that is gone never.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

typedef int resolve(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int);
typedef int leave(struct rdma_cm_id *, struct sockaddr *);

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int limit)
{
    static int calls;
    resolve *next = (resolve *)dlsym(RTLD_NEXT, "rdma_resolve_addr");
    if (calls++ > 0)
        sleep(1);
    return next(id, from, to, limit);
}

int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *group)
{
    leave *next = (leave *)dlsym(RTLD_NEXT, "rdma_leave_multicast");
    sleep(1);
    return next(id, group);
}
