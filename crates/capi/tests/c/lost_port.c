/* A listener whose port another user takes while portd is started again: it is told by an event. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include "common.h"

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) };
    CHECK(inet_aton(argv[1], &at.sin_addr));
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id;
    CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    CHECK(!rdma_bind_addr(id, (struct sockaddr *)&at) && !rdma_listen(id, 1));
    puts("listening");
    fflush(stdout);
    struct rdma_cm_event *event;
    CHECK(!rdma_get_cm_event(channel, &event));
    printf("%s %d\n", rdma_event_str(event->event), event->status);
    CHECK(event->id == id && event->event == RDMA_CM_EVENT_ADDR_ERROR);
    CHECK(event->status == -EADDRINUSE);
    CHECK(!rdma_ack_cm_event(event));
    CHECK(!rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
    return 0;
}
