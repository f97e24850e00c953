/* What the C tests have in common: a connection of a queue pair with itself. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the test, and says where. */
#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__,     \
                    #condition, errno, strerror(errno));                          \
            _exit(1);                                                             \
        }                                                                         \
    } while (0)

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_qp *qp;
    char buffer[4096];
};

static inline struct ibv_context *open_nth(int n)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && n < count);
    struct ibv_context *context = ibv_open_device(list[n]);
    CHECK(context);
    ibv_free_device_list(list);
    return context;
}

static inline void make(struct end *end, struct ibv_context *context)
{
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    end->context = context;
    CHECK((end->pd = ibv_alloc_pd(context)));
    CHECK((end->channel = ibv_create_comp_channel(context)));
    CHECK((end->cq = ibv_create_cq(context, 16, end, end->channel, 0)));
    CHECK((end->mr = ibv_reg_mr(end->pd, end->buffer, sizeof end->buffer, access)));
    struct ibv_qp_init_attr init = {
        .send_cq = end->cq,
        .recv_cq = end->cq,
        .qp_type = IBV_QPT_RC,
        .cap = { 8, 8, 2, 2, 64 },
    };
    CHECK((end->qp = ibv_create_qp(end->pd, &init)));
}

/* Connects a queue pair with another, so that it gives these rights, and has this patience. */
static inline void connect_to(struct end *end, struct end *peer, int access, int rnr_retry)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    attr.qp_access_flags = access;
    int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(!ibv_modify_qp(end->qp, &attr, init));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer->qp->qp_num;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    CHECK(!ibv_query_gid(end->context, 1, 0, &attr.ah_attr.grh.dgid));
    int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(!ibv_modify_qp(end->qp, &attr, rtr));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = rnr_retry;
    attr.max_rd_atomic = 1;
    int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(!ibv_modify_qp(end->qp, &attr, rts));
}

/* Connects a queue pair with itself. */
static inline void connect_self(struct end *end)
{
    connect_to(end, end, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, 7);
}

static inline int post_receive(struct end *end, uint64_t wr_id)
{
    struct ibv_sge sge = { (uintptr_t)end->buffer, 64, end->mr->lkey };
    struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
    return ibv_post_recv(end->qp, &wr, &bad);
}

static inline int post_text(struct end *end, uint64_t wr_id, const char *text)
{
    struct ibv_sge sge = { (uintptr_t)text, strlen(text) + 1, 0 };
    struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    return ibv_post_send(end->qp, &wr, &bad);
}

/* Waits for a completion; there is no other way that it could end. */
static inline struct ibv_wc complete(struct end *end)
{
    struct ibv_wc wc;
    int got;
    while ((got = ibv_poll_cq(end->cq, 1, &wc)) == 0)
        ;
    CHECK(got == 1);
    return wc;
}

/* Sends a text to itself. */
static inline void say(struct end *end, const char *text)
{
    memset(end->buffer, 0, 64);
    CHECK(!post_receive(end, 1));
    CHECK(!post_text(end, 2, text));
    CHECK(complete(end).status == IBV_WC_SUCCESS);
    CHECK(complete(end).status == IBV_WC_SUCCESS);
    CHECK(!strcmp(end->buffer, text));
}

static inline void destroy(struct end *end)
{
    CHECK(!ibv_destroy_qp(end->qp));
    CHECK(!ibv_dereg_mr(end->mr));
    CHECK(!ibv_destroy_cq(end->cq));
    CHECK(!ibv_destroy_comp_channel(end->channel));
    CHECK(!ibv_dealloc_pd(end->pd));
}
