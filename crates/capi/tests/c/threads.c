/* Threads that post to queue pairs of their own and to one that they share, and take each other's
 * completions from one queue. */
#include <pthread.h>
#include <unistd.h>

#include "common.h"

enum { THREADS = 4, ROUNDS = 500 };

static struct end ends[THREADS], *common;
static unsigned received[THREADS + 1], sent[THREADS + 1];

/* Takes all completions, of any thread. */
static void take(struct ibv_cq *cq)
{
    struct ibv_wc wc[4];
    int got = ibv_poll_cq(cq, 4, wc);
    CHECK(got >= 0 && got <= 4);
    for (int i = 0; i < got; i++) {
        CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id <= THREADS);
        unsigned *count = wc[i].opcode == IBV_WC_RECV ? received : sent;
        __atomic_fetch_add(&count[wc[i].wr_id], 1, __ATOMIC_SEQ_CST);
    }
}

static unsigned total(unsigned *counts)
{
    unsigned sum = 0;
    for (int i = 0; i <= THREADS; i++)
        sum += __atomic_load_n(&counts[i], __ATOMIC_SEQ_CST);
    return sum;
}

/* Posts until there is room: the queues are shorter than what the threads post. */
static void until_posted(struct end *end, uint64_t id, int is_send)
{
    int refused;
    while ((refused = is_send ? post_text(end, id, "text") : post_receive(end, id))) {
        CHECK(refused == ENOMEM);
        take(common->cq);
    }
}

static void *work(void *arg)
{
    uint64_t id = (uintptr_t)arg;
    for (int i = 0; i < ROUNDS; i++) {
        until_posted(&ends[id], id, 0);
        until_posted(&ends[id], id, 1);
        until_posted(common, THREADS, 0);
        until_posted(common, THREADS, 1);
        take(common->cq);
    }
    return NULL;
}

int main(void)
{
    struct ibv_context *context = open_nth(0);
    pthread_t threads[THREADS];
    common = calloc(1, sizeof *common);
    make(common, context);
    connect_self(common);
    /* Completions of all end up in the queue of the first. */
    for (int i = 0; i < THREADS; i++) {
        struct ibv_qp_init_attr init = {
            .send_cq = common->cq,
            .recv_cq = common->cq,
            .qp_type = IBV_QPT_RC,
            .cap = { 8, 8, 2, 2, 64 },
        };
        ends[i].context = context;
        CHECK((ends[i].mr = ibv_reg_mr(common->pd, ends[i].buffer, sizeof ends[i].buffer,
                                       IBV_ACCESS_LOCAL_WRITE)));
        CHECK((ends[i].qp = ibv_create_qp(common->pd, &init)));
        connect_self(&ends[i]);
    }
    CHECK(!ibv_resize_cq(common->cq, 16 * (THREADS + 1)));
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, work, (void *)i));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    unsigned all = 2 * THREADS * ROUNDS;
    while (total(received) < all || total(sent) < all)
        take(common->cq);
    CHECK(total(received) == all && total(sent) == all);
    CHECK(received[THREADS] == THREADS * ROUNDS && sent[0] == ROUNDS);
    for (int i = 0; i < THREADS; i++) {
        CHECK(!ibv_destroy_qp(ends[i].qp));
        CHECK(!ibv_dereg_mr(ends[i].mr));
    }
    destroy(common);
    CHECK(!ibv_close_device(context));
    return 0;
}
