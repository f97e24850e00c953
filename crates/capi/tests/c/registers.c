/* An ordinary program for tools that watch memory: it registers memory that it has not written yet,
 * sends a message to itself, waits for an event, and frees everything. */
#include <unistd.h>

#include "common.h"

int main(void)
{
    struct ibv_context *context = open_nth(0);
    struct end *end = malloc(sizeof *end);
    struct ibv_cq *cq;
    void *cq_context;
    CHECK(end);
    make(end, context);
    connect_self(end);
    CHECK(!ibv_req_notify_cq(end->cq, 0));
    say(end, "hello");
    CHECK(!ibv_get_cq_event(end->channel, &cq, &cq_context));
    ibv_ack_cq_events(cq, 1);
    destroy(end);
    CHECK(!ibv_close_device(context));
    free(end);
    return 0;
}
