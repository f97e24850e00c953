/*
 * Goes ahead of librdmacm in a program that ends its connections at once, and lets it wait before
 * that.
 *
 * Soft-iWARP (Linux 6.1) completes a SEND that it has sent with an error if the peer closes the
 * connection before the driver has noted that the SEND is done. perftest ends a connection as soon
 * as it has received the last message, which an emulated peer has not noted by then.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

typedef int disconnect(struct rdma_cm_id *);

int rdma_disconnect(struct rdma_cm_id *id)
{
    disconnect *next = (disconnect *)dlsym(RTLD_NEXT, "rdma_disconnect");
    sleep(1);
    return next(id);
}
