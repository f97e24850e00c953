/* Threads that wait for events are cancelled, and one that destroys a queue waits until its event
 * is acknowledged. */
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "common.h"

static void *wait_for_completions(void *arg)
{
    struct ibv_cq *cq;
    void *context;
    CHECK(!ibv_get_cq_event(arg, &cq, &context));
    return cq;
}

static void *wait_for_trouble(void *arg)
{
    struct ibv_async_event event;
    CHECK(!ibv_get_async_event(arg, &event));
    return arg;
}

static void cancel(void *(*function)(void *), void *arg)
{
    pthread_t thread;
    void *result;
    CHECK(!pthread_create(&thread, NULL, function, arg));
    usleep(20000); /* so that it mostly waits by now; it may be cancelled at any time */
    CHECK(!pthread_cancel(thread));
    CHECK(!pthread_join(thread, &result));
    CHECK(result == PTHREAD_CANCELED);
}

static int destroyed;

static void *destroy_cq(void *cq)
{
    CHECK(!ibv_destroy_cq(cq));
    __atomic_store_n(&destroyed, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

int main(void)
{
    struct ibv_context *context = open_nth(0);
    struct end *end = calloc(1, sizeof *end);
    struct ibv_cq *cq;
    void *cq_context;
    pthread_t thread;
    make(end, context);
    cancel(wait_for_completions, end->channel);
    cancel(wait_for_trouble, context);
    connect_self(end);
    CHECK(!ibv_req_notify_cq(end->cq, 0));
    say(end, "still here");
    CHECK(!ibv_get_cq_event(end->channel, &cq, &cq_context));
    CHECK(!ibv_destroy_qp(end->qp));
    CHECK(!pthread_create(&thread, NULL, destroy_cq, cq));
    usleep(50000);
    CHECK(!__atomic_load_n(&destroyed, __ATOMIC_SEQ_CST));
    ibv_ack_cq_events(cq, 1);
    CHECK(!pthread_join(thread, NULL));
    CHECK(!ibv_destroy_comp_channel(end->channel));
    CHECK(!ibv_dereg_mr(end->mr));
    CHECK(!ibv_dealloc_pd(end->pd));
    CHECK(!ibv_close_device(context));
    return 0;
}
