/* Atomics: processes draw tickets from a counter in the memory of another. Each ticket is drawn
 * once, and the owner of the counter makes no call for it. */
#include "example.h"

enum { CLIENTS = 3, TICKETS = 200 };

/* Draws tickets, and returns their sum. */
static uint64_t draw(struct end *end, uint64_t *word, const struct place *counter)
{
    uint64_t sum = 0;
    for (int i = 0; i < TICKETS; i++) {
        struct ibv_sge sge = { (uintptr_t)word, sizeof *word, end->mr->lkey };
        struct ibv_send_wr *bad, wr = {
            .wr_id = i,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
            .wr.atomic = { .remote_addr = counter->addr, .rkey = counter->rkey, .compare_add = 1 },
        };
        CHECK(!ibv_post_send(end->qp, &wr, &bad));
        expect_success(wait_one(end->cq));
        sum += *word; /* the counter as it was before */
    }
    return sum;
}

static void client(int socket)
{
    uint64_t word = 0;
    struct end end = make_end(open_first(), &word, sizeof word, IBV_ACCESS_LOCAL_WRITE);
    struct place counter;
    exchange(socket, &end.place, &counter, sizeof counter);
    connect_end(&end, &counter);
    meet(socket);
    uint64_t sum = draw(&end, &word, &counter), ignored;
    exchange(socket, &sum, &ignored, sizeof sum);
    destroy_end(&end);
    CHECK(!ibv_close_device(end.context));
}

int main(void)
{
    pid_t children[CLIENTS];
    int sockets[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        sockets[i] = split(&children[i]);
        if (children[i] == 0) {
            client(sockets[i]);
            return 0;
        }
    }
    /* One queue pair for each client; all of them lead to the same word. */
    static uint64_t counter;
    struct ibv_context *context = open_first();
    struct end ends[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        struct place peer;
        ends[i] = make_end(context, &counter, sizeof counter,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
        exchange(sockets[i], &ends[i].place, &peer, sizeof peer);
        connect_end(&ends[i], &peer);
        meet(sockets[i]);
    }
    uint64_t all = 0;
    for (int i = 0; i < CLIENTS; i++) {
        uint64_t sum, zero = 0;
        exchange(sockets[i], &zero, &sum, sizeof sum);
        all += sum;
    }
    for (int i = 0; i < CLIENTS; i++) {
        expect_end(children[i]);
        destroy_end(&ends[i]);
    }
    CHECK(!ibv_close_device(context));

    uint64_t drawn = CLIENTS * TICKETS;
    printf("%d clients drew %lu tickets; the counter says %lu\n", CLIENTS, (unsigned long)drawn,
           (unsigned long)counter);
    CHECK(counter == drawn);
    CHECK(all == drawn * (drawn - 1) / 2); /* 0 + 1 + ...: each ticket once */
    return 0;
}
