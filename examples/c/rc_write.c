/* RDMA WRITE: one process puts bytes into the memory of another, which makes no call for it. */
#include "example.h"

static const char text[] = "hello from another process";

/* Offers its memory, and looks at it when the writer says that it is done. */
static void target(int socket)
{
    char memory[4096] = "";
    struct end end = make_end(open_first(), memory, sizeof memory,
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct place peer;
    exchange(socket, &end.place, &peer, sizeof peer);
    connect_end(&end, &peer);
    meet(socket); /* both are ready */
    meet(socket); /* the writer has its completion */
    printf("target: \"%s\"\n", memory);
    CHECK(strcmp(memory, text) == 0);
    destroy_end(&end);
    CHECK(!ibv_close_device(end.context));
}

static void writer(int socket)
{
    char memory[4096];
    strcpy(memory, text);
    struct end end = make_end(open_first(), memory, sizeof memory, 0);
    struct place peer;
    exchange(socket, &end.place, &peer, sizeof peer);
    connect_end(&end, &peer);
    meet(socket);

    struct ibv_sge sge = { (uintptr_t)memory, sizeof text, end.mr->lkey };
    struct ibv_send_wr *bad, wr = {
        .wr_id = 1,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .wr.rdma = { .remote_addr = peer.addr, .rkey = peer.rkey },
    };
    CHECK(!ibv_post_send(end.qp, &wr, &bad));
    expect_success(wait_one(end.cq));
    printf("writer: %zu bytes are in the memory of the target\n", sizeof text);
    fflush(stdout);
    meet(socket);
    destroy_end(&end);
    CHECK(!ibv_close_device(end.context));
}

int main(void)
{
    pid_t child;
    int socket = split(&child);
    if (child == 0) {
        target(socket);
        return 0;
    }
    writer(socket);
    expect_end(child);
    return 0;
}
