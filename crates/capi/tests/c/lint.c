/* Programs with one mistake each, chosen by name; without a name, one without a mistake. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

/* A pipe in place of standard error, and standard error itself. */
static int said[2], spoken;

static int posted(struct end *end, enum ibv_wr_opcode opcode, struct ibv_mr *from, uint32_t rkey,
          int flags)
{
    struct ibv_sge sge = { (uintptr_t)end->buffer, 8, from->lkey };
    struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.wr.rdma.remote_addr = (uintptr_t)end->buffer + 64;
    wr.wr.rdma.rkey = rkey;
    return ibv_post_send(end->qp, &wr, &bad);
}

/* Every eighth send is signalled, in a queue of eight, and a child exits with what it inherits. */
static void nothing(struct end *end)
{
    connect_self(end);
    say(end, "well behaved");
    for (int i = 1; i <= 64; i++) {
        int flags = i % 8 ? 0 : IBV_SEND_SIGNALED;
        CHECK(!posted(end, IBV_WR_RDMA_WRITE, end->mr, end->mr->rkey, flags));
        if (flags)
            CHECK(complete(end).status == IBV_WC_SUCCESS);
    }
    pid_t child = fork();
    if (!child)
        exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && !status);
}

/* Eight receives fit, and a send that is signalled on top of them does not. */
static void depth(struct end *end)
{
    CHECK(!ibv_resize_cq(end->cq, 8));
    connect_self(end);
    for (int i = 0; i < 8; i++)
        CHECK(!post_receive(end, i));
    CHECK(!posted(end, IBV_WR_RDMA_WRITE, end->mr, end->mr->rkey, 0));
    CHECK(!posted(end, IBV_WR_RDMA_WRITE, end->mr, end->mr->rkey, IBV_SEND_SIGNALED));
    CHECK(complete(end).status == IBV_WC_SUCCESS);
}

static void starved(struct end *end)
{
    connect_to(end, end, 0, 1);
    CHECK(!post_text(end, 1, "is anybody there?"));
    CHECK(complete(end).status == IBV_WC_RNR_RETRY_EXC_ERR);
}

static void unknown_key(struct end *end)
{
    connect_self(end);
    struct ibv_mr *mr = ibv_reg_mr(end->pd, end->buffer, 64, IBV_ACCESS_LOCAL_WRITE), copy = *mr;
    CHECK(!ibv_dereg_mr(mr));
    CHECK(!posted(end, IBV_WR_RDMA_WRITE, &copy, end->mr->rkey, IBV_SEND_SIGNALED));
    CHECK(complete(end).status == IBV_WC_LOC_PROT_ERR);
}

static void read_only(struct end *end)
{
    connect_self(end);
    struct ibv_mr *mr = ibv_reg_mr(end->pd, end->buffer, 64, 0);
    CHECK(!posted(end, IBV_WR_RDMA_READ, mr, end->mr->rkey, IBV_SEND_SIGNALED));
    CHECK(complete(end).status == IBV_WC_LOC_PROT_ERR);
    CHECK(!ibv_dereg_mr(mr));
}

static void refused(struct end *end)
{
    struct ibv_async_event event;
    struct end *peer = calloc(1, sizeof *peer);
    make(peer, end->context);
    connect_to(peer, end, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, 7);
    connect_to(end, peer, 0, 7);
    struct ibv_mr *mr = ibv_reg_mr(peer->pd, end->buffer, 128, IBV_ACCESS_LOCAL_WRITE);
    CHECK(!posted(end, IBV_WR_RDMA_WRITE, end->mr, mr->rkey, IBV_SEND_SIGNALED));
    CHECK(complete(end).status == IBV_WC_REM_ACCESS_ERR);
    CHECK(!ibv_dereg_mr(mr));
    do {
        CHECK(!ibv_get_async_event(end->context, &event));
        ibv_ack_async_event(&event);
    } while (event.event_type != IBV_EVENT_QP_ACCESS_ERR);
    destroy(peer);
    free(peer);
}

static void pulled(struct end *end)
{
    connect_self(end);
    struct ibv_mr *mr = end->mr;
    CHECK(!post_receive(end, 1) && !post_receive(end, 2));
    CHECK((end->mr = ibv_reg_mr(end->pd, end->buffer, 64, IBV_ACCESS_LOCAL_WRITE)));
    CHECK(!ibv_dereg_mr(mr));
}

/* The same with receives that queue pairs share. */
static void shared(struct end *end)
{
    struct ibv_srq_init_attr attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
    struct ibv_srq *srq = ibv_create_srq(end->pd, &attr);
    struct ibv_mr *mr = ibv_reg_mr(end->pd, end->buffer, 64, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp_init_attr init = {
        .send_cq = end->cq,
        .recv_cq = end->cq,
        .srq = srq,
        .qp_type = IBV_QPT_RC,
        .cap = { 8, 0, 2, 0, 64 },
    };
    CHECK(srq && mr && !ibv_destroy_qp(end->qp));
    CHECK((end->qp = ibv_create_qp(end->pd, &init)));
    connect_self(end);
    for (int i = 1; i <= 3; i++) {
        struct ibv_sge sge = { (uintptr_t)end->buffer, 64, mr->lkey };
        struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
        CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
    }
    CHECK(!post_text(end, 4, "takes the first"));
    CHECK(complete(end).status == IBV_WC_SUCCESS && complete(end).status == IBV_WC_SUCCESS);
    CHECK(!ibv_dereg_mr(mr));
    CHECK(!ibv_destroy_qp(end->qp) && !ibv_destroy_srq(srq));
    init.srq = NULL;
    CHECK((end->qp = ibv_create_qp(end->pd, &init)));
}

/* More of them than fit into the completion queue of those who share them. */
static void shared_depth(struct end *end)
{
    struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
    struct ibv_srq *srq = ibv_create_srq(end->pd, &attr);
    struct ibv_qp_init_attr init = {
        .send_cq = end->cq,
        .recv_cq = end->cq,
        .srq = srq,
        .qp_type = IBV_QPT_RC,
        .cap = { 1, 0, 1, 0, 0 },
    };
    struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
    CHECK(srq && !ibv_resize_cq(end->cq, 8) && !ibv_destroy_qp(end->qp));
    CHECK((end->qp = ibv_create_qp(end->pd, &init)));
    for (int i = 0; i < 9; i++)
        CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
    CHECK(!ibv_destroy_qp(end->qp) && !ibv_destroy_srq(srq));
    init.srq = NULL;
    CHECK((end->qp = ibv_create_qp(end->pd, &init)));
}

/* A path without a GID, which is how programs for InfiniBand connect. */
static void no_gid(struct end *end)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(!ibv_modify_qp(end->qp, &attr, init));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = end->qp->qp_num;
    attr.ah_attr.dlid = 1;
    attr.ah_attr.port_num = 1;
    CHECK(ibv_modify_qp(end->qp, &attr, rtr) == EINVAL);
}

static void skips(struct end *end)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
    CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == EINVAL);
}

static void too_early(struct end *end)
{
    CHECK(posted(end, IBV_WR_RDMA_WRITE, end->mr, end->mr->rkey, 0) == EINVAL);
}

static void too_small(struct end *end)
{
    struct end *peer = calloc(1, sizeof *peer);
    make(peer, end->context);
    connect_to(peer, end, 0, 7);
    connect_to(end, peer, 0, 7);
    struct ibv_sge sge = { (uintptr_t)peer->buffer, 4, peer->mr->lkey };
    struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;
    CHECK(!ibv_post_recv(peer->qp, &wr, &bad));
    CHECK(!post_text(end, 1, "longer than that"));
    CHECK(complete(end).status == IBV_WC_REM_INV_REQ_ERR);
    CHECK(complete(peer).status == IBV_WC_LOC_LEN_ERR);
    destroy(peer);
    free(peer);
}

/* There is no queue pair of this number. */
static void nobody(struct end *end)
{
    struct ibv_qp other = *end->qp;
    struct end peer = { .qp = &other };
    other.qp_num ^= 0x5555;
    connect_to(end, &peer, 0, 7);
    CHECK(!post_text(end, 1, "is anybody there?"));
    CHECK(complete(end).status == IBV_WC_RETRY_EXC_ERR);
}

/* Passes on what is said, and only then acknowledges. */
static void *acknowledges(void *cq)
{
    if (strcmp(getenv("FEROCE_LINT"), "0")) {
        char line[512];
        ssize_t len = read(said[0], line, sizeof line);
        CHECK(len > 0 && write(spoken, line, len) == len);
    }
    ibv_ack_cq_events(cq, 1);
    return NULL;
}

static void unacknowledged(struct end *end)
{
    void *context;
    struct ibv_cq *cq;
    pthread_t thread;
    connect_self(end);
    CHECK(!ibv_req_notify_cq(end->cq, 0));
    CHECK(!posted(end, IBV_WR_RDMA_WRITE, end->mr, end->mr->rkey, IBV_SEND_SIGNALED));
    CHECK(!ibv_get_cq_event(end->channel, &cq, &context));
    CHECK(complete(end).status == IBV_WC_SUCCESS);
    CHECK(!pipe(said) && (spoken = dup(2)) >= 0 && dup2(said[1], 2) == 2);
    CHECK(!ibv_destroy_qp(end->qp));
    CHECK(!pthread_create(&thread, NULL, acknowledges, cq));
    CHECK(!ibv_destroy_cq(end->cq));
    CHECK(!pthread_join(thread, NULL) && dup2(spoken, 2) == 2);
    /* As it was, for the end of the program. */
    CHECK((end->cq = ibv_create_cq(end->context, 16, end, end->channel, 0)));
    struct ibv_qp_init_attr init = { .send_cq = end->cq, .recv_cq = end->cq };
    init.qp_type = IBV_QPT_RC;
    CHECK((end->qp = ibv_create_qp(end->pd, &init)));
}

/* The same mistake on ten objects. */
static void many(struct end *end)
{
    struct end *others = calloc(10, sizeof *others);
    for (int i = 0; i < 10; i++) {
        make(&others[i], end->context);
        pulled(&others[i]);
    }
    for (int i = 0; i < 10; i++)
        destroy(&others[i]);
    free(others);
}

static void unsignalled(struct end *end)
{
    connect_self(end);
    for (int i = 0; i < 8; i++)
        CHECK(!posted(end, IBV_WR_RDMA_WRITE, end->mr, end->mr->rkey, 0));
    /* Whether there is room depends on how far the adapter is. */
    posted(end, IBV_WR_RDMA_WRITE, end->mr, end->mr->rkey, IBV_SEND_SIGNALED);
}

static void leaks(struct end *end)
{
    CHECK(ibv_reg_mr(end->pd, end->buffer, 64, 0) && ibv_reg_mr(end->pd, end->buffer, 64, 0));
    exit(0);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*make)(struct end *);
    } mistakes[] = {
        { "nothing", nothing }, { "depth", depth },     { "starved", starved },
        { "unknown_key", unknown_key }, { "read_only", read_only }, { "refused", refused },
        { "pulled", pulled },   { "many", many }, { "unsignalled", unsignalled }, { "leaks", leaks },
        { "shared", shared },   { "shared_depth", shared_depth }, { "no_gid", no_gid },
        { "skips", skips }, { "too_early", too_early }, { "too_small", too_small },
        { "nobody", nobody }, { "unacknowledged", unacknowledged },
    };
    CHECK(argc == 2);
    struct ibv_context *context = open_nth(0);
    struct end *end = calloc(1, sizeof *end);
    make(end, context);
    size_t i = 0;
    while (strcmp(mistakes[i].name, argv[1]))
        CHECK(++i < sizeof mistakes / sizeof *mistakes);
    mistakes[i].make(end);
    destroy(end);
    CHECK(!ibv_close_device(context));
    free(end);
    return 0;
}
