/* What tests of connections have in common. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include "common.h"

static inline struct sockaddr_in at(const char *ip, int port)
{
    struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(port) };
    CHECK(inet_pton(AF_INET, ip, &sin.sin_addr) == 1);
    return sin;
}

/* Takes an event, which must be of this kind; the caller acknowledges it. */
static inline struct rdma_cm_event *take(struct rdma_event_channel *channel,
                                         enum rdma_cm_event_type kind)
{
    struct rdma_cm_event *event;
    CHECK(!rdma_get_cm_event(channel, &event));
    if (event->event != kind)
        fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(kind));
    CHECK(event->event == kind);
    return event;
}

/* Takes an event of this kind, and says what its status is. */
static inline int expect(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
    struct rdma_cm_event *event = take(channel, kind);
    int status = event->status;
    CHECK(!rdma_ack_cm_event(event));
    return status;
}
