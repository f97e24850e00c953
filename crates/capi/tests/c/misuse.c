/* What programs do wrong, and what they are told. */
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

static void refused_arguments(struct ibv_context *context)
{
    struct ibv_port_attr port;
    union ibv_gid gid;
    CHECK(ibv_query_port(context, 2, &port) == EINVAL);
    CHECK(ibv_query_gid(context, 1, 1000, &gid) == -1 && errno == EINVAL);
    CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
    CHECK(!ibv_create_cq(context, -1, NULL, NULL, 0) && errno == EINVAL);
    CHECK(!ibv_create_cq(context, 16, NULL, NULL, context->num_comp_vectors));
    CHECK(errno == EINVAL);
}

/* What is in use stays. */
static void busy(struct end *end)
{
    CHECK(ibv_dealloc_pd(end->pd) == EBUSY);
    CHECK(ibv_destroy_cq(end->cq) == EBUSY);
    CHECK(ibv_destroy_comp_channel(end->channel) == EBUSY);
    union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 1 } };
    CHECK(ibv_attach_mcast(end->qp, &group, 0) == EINVAL);
}

static void memory(struct end *end)
{
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED && !munmap(page, 4096));
    CHECK(!ibv_reg_mr(end->pd, page, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
    /* The adapter may not do what the program may not. */
    int prot = PROT_READ | PROT_WRITE, write = IBV_ACCESS_LOCAL_WRITE;
    struct ibv_mr *mr;
    CHECK((page = mmap(NULL, 3 * 4096, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED);
    CHECK(!mprotect(page + 4096, 4096, PROT_READ));
    CHECK(!ibv_reg_mr(end->pd, page + 4096, 4096, write) && errno == EFAULT);
    CHECK(!ibv_reg_mr(end->pd, page, 3 * 4096, write) && errno == EFAULT);
    CHECK(!ibv_reg_mr(end->pd, page + 100, 3 * 4096 - 200, write) && errno == EFAULT);
    CHECK((mr = ibv_reg_mr(end->pd, page, 3 * 4096, IBV_ACCESS_REMOTE_READ)));
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, write) && errno == EFAULT);
    CHECK(!ibv_dereg_mr(mr));
    CHECK((mr = ibv_reg_mr(end->pd, page + 2 * 4096, 4096, write)) && !ibv_dereg_mr(mr));
    CHECK(!mprotect(page, 4096, PROT_NONE));
    CHECK(!ibv_reg_mr(end->pd, page, 4096, IBV_ACCESS_REMOTE_READ) && errno == EFAULT);
    CHECK(!munmap(page, 3 * 4096));
    /* A peer may not do what the owner may not. */
    CHECK(!ibv_reg_mr(end->pd, end->buffer, 64, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
    CHECK(!ibv_reg_dmabuf_mr(end->pd, 0, 0, 0, -1, 0) && errno == EOPNOTSUPP);
    /* However large it is, and whatever the limit on locked memory. */
    size_t huge = (size_t)1 << 40;
    char *large = mmap(NULL, huge, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(large != MAP_FAILED);
    int relaxed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
    mr = ibv_reg_mr(end->pd, large, huge, relaxed);
    CHECK(mr && mr->length == huge && !ibv_dereg_mr(mr) && !munmap(large, huge));
}

static void posting(struct end *end)
{
    /* Nothing can be posted in RESET. */
    CHECK(end->qp->state == IBV_QPS_RESET);
    CHECK(post_receive(end, 1) == EINVAL);
    CHECK(post_text(end, 1, "too early") == EINVAL);
    connect_self(end);
    /* The chain is posted up to what cannot be. */
    struct ibv_recv_wr wr[10], *bad = NULL;
    for (int i = 0; i < 10; i++)
        wr[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i < 9 ? &wr[i + 1] : NULL };
    CHECK(ibv_post_recv(end->qp, wr, &bad) == ENOMEM && bad == &wr[8]);
    struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .num_sge = 3 }, *bad_send = NULL;
    struct ibv_sge sges[3] = { { 0 } };
    send.sg_list = sges;
    CHECK(ibv_post_send(end->qp, &send, &bad_send) == EINVAL && bad_send == &send);
    send.num_sge = -1;
    CHECK(ibv_post_send(end->qp, &send, &bad_send) == EINVAL);
    send = (struct ibv_send_wr){ .opcode = IBV_WR_TSO };
    CHECK(ibv_post_send(end->qp, &send, &bad_send) == EINVAL);
    /* An unknown key makes the request fail, not the call, and the rest is flushed. */
    sges[0] = (struct ibv_sge){ (uintptr_t)end->buffer, 8, 0x12345678 };
    send = (struct ibv_send_wr){ .wr_id = 5, .sg_list = sges, .num_sge = 1 };
    send.opcode = IBV_WR_SEND;
    CHECK(!ibv_post_send(end->qp, &send, &bad_send));
    struct ibv_wc wc = complete(end);
    CHECK(wc.wr_id == 5 && wc.status == IBV_WC_LOC_PROT_ERR);
    for (int i = 0; i < 8; i++) {
        wc = complete(end);
        CHECK(wc.wr_id == (uint64_t)i && wc.status == IBV_WC_WR_FLUSH_ERR);
    }
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init));
    CHECK(attr.qp_state == IBV_QPS_ERR && end->qp->state == IBV_QPS_ERR);
    CHECK(init.cap.max_send_wr == 8 && init.send_cq == end->cq);
    attr.qp_state = IBV_QPS_RESET;
    CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
}

/* Attributes that do not fit the transition. */
static void transitions(struct end *end)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
    CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE) == EINVAL);
    attr.qp_state = IBV_QPS_INIT;
    CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE) == EINVAL);
    int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    attr.port_num = 2;
    CHECK(ibv_modify_qp(end->qp, &attr, init) == EINVAL);
    attr.port_num = 1;
    CHECK(ibv_modify_qp(end->qp, &attr, init | IBV_QP_SQ_PSN) == EINVAL);
    /* What every adapter knows, but not on this way. */
    attr.cur_qp_state = IBV_QPS_RESET;
    attr.path_mig_state = IBV_MIG_MIGRATED;
    CHECK(ibv_modify_qp(end->qp, &attr, init | IBV_QP_CUR_STATE) == EINVAL);
    CHECK(ibv_modify_qp(end->qp, &attr, init | IBV_QP_PATH_MIG_STATE) == EINVAL);
    CHECK(end->qp->state == IBV_QPS_RESET);
    CHECK(!ibv_modify_qp(end->qp, &attr, init));
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024 };
    attr.dest_qp_num = end->qp->qp_num;
    attr.ah_attr.is_global = 1;
    CHECK(!ibv_query_gid(end->context, 1, 0, &attr.ah_attr.grh.dgid));
    int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    for (int port = 0; port <= 2; port += 2) {
        attr.ah_attr.port_num = port;
        CHECK(ibv_modify_qp(end->qp, &attr, rtr) == EINVAL);
        CHECK(!ibv_create_ah(end->pd, &attr.ah_attr) && errno == EINVAL);
    }
    attr.ah_attr.port_num = 1;
    attr.cur_qp_state = IBV_QPS_INIT;
    CHECK(ibv_modify_qp(end->qp, &attr, rtr | IBV_QP_CUR_STATE) == EINVAL);
    CHECK(ibv_modify_qp(end->qp, &attr, rtr | IBV_QP_PATH_MIG_STATE) == EINVAL);
    CHECK(!ibv_modify_qp(end->qp, &attr, rtr));
    attr.qp_state = IBV_QPS_RTS;
    attr.cur_qp_state = IBV_QPS_RTR;
    attr.timeout = 14;
    int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(!ibv_modify_qp(end->qp, &attr, rts | IBV_QP_CUR_STATE | IBV_QP_PATH_MIG_STATE));
    attr.qp_state = IBV_QPS_RESET;
    CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
    /* Ethernet needs a global route. */
    struct ibv_ah_attr ah = { .port_num = 1 };
    CHECK(!ibv_create_ah(end->pd, &ah) && errno == EINVAL);
}

/* The same for datagrams, which have neither a path to migrate nor a peer. */
static void transitions_of_datagrams(struct end *end)
{
    struct ibv_qp_init_attr make = { .send_cq = end->cq, .recv_cq = end->cq };
    make.cap = (struct ibv_qp_cap){ 4, 4, 1, 1, 0 };
    make.qp_type = IBV_QPT_UD;
    struct ibv_qp *qp = ibv_create_qp(end->pd, &make);
    CHECK(qp);
    struct ibv_qp_attr attr = { .port_num = 1, .path_mig_state = IBV_MIG_MIGRATED };
    const struct {
        enum ibv_qp_state from, to;
        int takes, refuses;
    } way[] = {
        { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
          IBV_QP_CUR_STATE | IBV_QP_PATH_MIG_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_SQ_PSN },
        { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QP_QKEY,
          IBV_QP_CUR_STATE | IBV_QP_PATH_MIG_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
              IBV_QP_DEST_QPN | IBV_QP_RQ_PSN },
        { IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN | IBV_QP_CUR_STATE,
          IBV_QP_PATH_MIG_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_MIN_RNR_TIMER },
    };
    attr.ah_attr.port_num = 1;
    attr.path_mtu = IBV_MTU_1024;
    for (int i = 0; i < 3; i++) {
        attr.cur_qp_state = way[i].from;
        attr.qp_state = way[i].to;
        for (int bit = 1; bit < 1 << 21; bit <<= 1)
            if (way[i].refuses & bit)
                CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | way[i].takes | bit) == EINVAL);
        CHECK(qp->state == way[i].from);
        CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | way[i].takes));
    }
    CHECK(!ibv_destroy_qp(qp));
}

/* A channel waits or does not, as its descriptor says. */
static void events(struct end *end)
{
    struct ibv_cq *cq;
    void *context;
    struct ibv_async_event event;
    int fd = end->channel->fd;
    CHECK(!(fcntl(fd, F_GETFL) & O_NONBLOCK));
    CHECK(!fcntl(fd, F_SETFL, O_NONBLOCK));
    CHECK(ibv_get_cq_event(end->channel, &cq, &context) == -1 && errno == EAGAIN);
    CHECK(!fcntl(end->context->async_fd, F_SETFL, O_NONBLOCK));
    CHECK(ibv_get_async_event(end->context, &event) == -1 && errno == EAGAIN);
    CHECK(!fcntl(fd, F_SETFL, 0));
    CHECK(!ibv_req_notify_cq(end->cq, 0));
    say(end, "wake up");
    struct pollfd poll_fd = { fd, POLLIN, 0 };
    CHECK(poll(&poll_fd, 1, -1) == 1);
    CHECK(!ibv_get_cq_event(end->channel, &cq, &context));
    CHECK(cq == end->cq && context == end);
    CHECK(poll(&poll_fd, 1, 0) == 0);
    ibv_ack_cq_events(cq, 1);
}

/* A completion queue that is too small dies, and so do its queue pairs. */
static void overrun(struct ibv_context *context)
{
    struct ibv_async_event event;
    struct ibv_wc wc;
    struct end *end = calloc(1, sizeof *end);
    make(end, context);
    CHECK(!ibv_resize_cq(end->cq, 2));
    connect_self(end);
    CHECK(!post_receive(end, 1));
    CHECK(!post_receive(end, 2));
    CHECK(!post_text(end, 3, "one"));
    CHECK(!post_text(end, 4, "two"));
    int cq_errors = 0, qp_errors = 0;
    CHECK(!fcntl(context->async_fd, F_SETFL, 0));
    while (!cq_errors || !qp_errors) {
        CHECK(!ibv_get_async_event(context, &event));
        if (event.event_type == IBV_EVENT_CQ_ERR)
            cq_errors += event.element.cq == end->cq;
        else if (event.event_type == IBV_EVENT_QP_FATAL)
            qp_errors += event.element.qp == end->qp;
        ibv_ack_async_event(&event);
    }
    CHECK(ibv_poll_cq(end->cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    destroy(end);
    free(end);
}

/* A device that is closed too early stays until its objects are gone. */
static void closed_too_early(void)
{
    struct end *end = calloc(1, sizeof *end);
    struct ibv_context *context = open_nth(0);
    make(end, context);
    CHECK(!ibv_close_device(context));
    /* Memory that was freed would be given out again. */
    void *blocks[64];
    for (int i = 0; i < 64; i++)
        CHECK((blocks[i] = malloc(64 * i)) && memset(blocks[i], 0xff, 64 * i));
    connect_self(end);
    say(end, "late");
    destroy(end);
    for (int i = 0; i < 64; i++)
        free(blocks[i]);
    free(end);
}

int main(void)
{
    struct ibv_context *context = open_nth(0), *again = open_nth(0);
    struct end *end = calloc(1, sizeof *end);
    CHECK(context != again);
    refused_arguments(context);
    make(end, context);
    busy(end);
    memory(end);
    posting(end);
    transitions(end);
    transitions_of_datagrams(end);
    connect_self(end);
    /* As rdma-core 64 has it: an order of whole messages is one of their parts as well. */
    CHECK(ibv_query_qp_data_in_order(end->qp, IBV_WR_SEND, 0) == 1);
    CHECK(ibv_query_qp_data_in_order(end->qp, IBV_WR_RDMA_WRITE, 1) == 3);
    events(end);
    destroy(end);
    overrun(context);
    closed_too_early();
    CHECK(!ibv_close_device(again));
    CHECK(!ibv_close_device(context));
    return 0;
}
