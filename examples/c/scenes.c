/* Every scene of `feroce demo` in C: `feroce demo --code` shows these functions beside the packets
 * that they cause. Both ends are in this process, A and B. */
#include "example.h"

static struct ibv_context *context;
static struct end a, b;
static char from[4096], to[4096];

/* Two connected ends: A has the memory `from`, B the memory `to`, for which peers have `rights`. */
static void meet_with(int rights)
{
    memset(from, 'a', sizeof from);
    memset(to, 0, sizeof to);
    a = make_end(context, from, sizeof from, IBV_ACCESS_LOCAL_WRITE);
    b = make_end(context, to, sizeof to, IBV_ACCESS_LOCAL_WRITE | rights);
    connect_end(&a, &b.place);
    connect_end(&b, &a.place);
}

static void part(void)
{
    destroy_end(&a);
    destroy_end(&b);
}

/* Gives an end another queue pair. */
static void change_qp(struct end *end, enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = end->cq,
        .recv_cq = end->cq,
        .srq = srq,
        .qp_type = type,
        .sq_sig_all = 1,
        .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    CHECK(!ibv_destroy_qp(end->qp));
    CHECK((end->qp = ibv_create_qp(end->pd, &init)));
    end->place.qpn = end->qp->qp_num;
}

/* Posts a receive of B. */
static void post_recv(void *memory, uint32_t length)
{
    struct ibv_sge sge = { (uintptr_t)memory, length, b.mr->lkey };
    struct ibv_recv_wr *bad, wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 };
    CHECK(!ibv_post_recv(b.qp, &wr, &bad));
}

/* Posts a request of A with the first bytes of its memory. */
static void post_send(struct ibv_send_wr wr, uint32_t length)
{
    struct ibv_sge sge = { (uintptr_t)from, length, a.mr->lkey };
    struct ibv_send_wr *bad;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    CHECK(!ibv_post_send(a.qp, &wr, &bad));
}

static struct ibv_wc done(struct end *end)
{
    struct ibv_wc wc = wait_one(end->cq);
    expect_success(wc);
    return wc;
}

static void send_message(void)
{
    meet_with(0);
    struct ibv_sge target = { (uintptr_t)to, sizeof to, b.mr->lkey };
    struct ibv_recv_wr *bad_recv, recv = { .wr_id = 1, .sg_list = &target, .num_sge = 1 };
    CHECK(!ibv_post_recv(b.qp, &recv, &bad_recv));

    struct ibv_sge source = { (uintptr_t)from, 2500, a.mr->lkey };
    struct ibv_send_wr *bad, wr = {
        .wr_id = 1, .sg_list = &source, .num_sge = 1, .opcode = IBV_WR_SEND,
    };
    CHECK(!ibv_post_send(a.qp, &wr, &bad));
    done(&a);
    CHECK(done(&b).byte_len == 2500);
    CHECK(memcmp(from, to, 2500) == 0);
    part();
}

static void send_imm(void)
{
    meet_with(0);
    post_recv(to, 64);
    post_send((struct ibv_send_wr){ .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(0xcafe) }, 64);
    done(&a);
    struct ibv_wc wc = done(&b);
    CHECK(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == htonl(0xcafe));
    part();
}

static void rdma_write(void)
{
    meet_with(IBV_ACCESS_REMOTE_WRITE);
    struct ibv_sge source = { (uintptr_t)from, 2500, a.mr->lkey };
    struct ibv_send_wr *bad, wr = {
        .wr_id = 1,
        .sg_list = &source,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .wr.rdma = { .remote_addr = (uintptr_t)to + 512, .rkey = b.mr->rkey },
    };
    CHECK(!ibv_post_send(a.qp, &wr, &bad));
    done(&a);
    CHECK(memcmp(to + 512, from, 2500) == 0 && to[511] == 0 && to[512 + 2500] == 0);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(b.cq, 1, &wc) == 0); /* B's program heard nothing */
    part();
}

static void write_imm(void)
{
    meet_with(IBV_ACCESS_REMOTE_WRITE);
    struct ibv_recv_wr *bad, empty = { .wr_id = 1 };
    CHECK(!ibv_post_recv(b.qp, &empty, &bad));
    post_send((struct ibv_send_wr){
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .imm_data = htonl(7),
        .wr.rdma = { (uintptr_t)to, b.mr->rkey },
    }, 256);
    done(&a);
    struct ibv_wc wc = done(&b);
    CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.byte_len == 256);
    CHECK(wc.imm_data == htonl(7) && memcmp(from, to, 256) == 0);
    part();
}

static void rdma_read(void)
{
    meet_with(IBV_ACCESS_REMOTE_READ);
    memset(to, 'b', sizeof to);
    post_send((struct ibv_send_wr){
        .opcode = IBV_WR_RDMA_READ,
        .wr.rdma = { (uintptr_t)to, b.mr->rkey },
    }, 2500);
    CHECK(done(&a).opcode == IBV_WC_RDMA_READ);
    CHECK(memcmp(from, to, 2500) == 0);
    part();
}

static void compare_swap(void)
{
    meet_with(IBV_ACCESS_REMOTE_ATOMIC);
    uint64_t *lock = (uint64_t *)to, *old = (uint64_t *)from;
    struct ibv_send_wr wr = {
        .opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
        .wr.atomic = { .remote_addr = (uintptr_t)lock, .rkey = b.mr->rkey,
                       .compare_add = 0, .swap = 1 },
    };
    post_send(wr, 8);
    done(&a);
    CHECK(*old == 0 && *lock == 1); /* A has the lock */
    post_send(wr, 8);
    done(&a);
    CHECK(*old == 1 && *lock == 1); /* it was taken */
    part();
}

static void fetch_add(void)
{
    meet_with(IBV_ACCESS_REMOTE_ATOMIC);
    uint64_t *counter = (uint64_t *)to, *old = (uint64_t *)from;
    *counter = 40;
    post_send((struct ibv_send_wr){
        .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
        .wr.atomic = { .remote_addr = (uintptr_t)counter, .rkey = b.mr->rkey, .compare_add = 2 },
    }, 8);
    done(&a);
    CHECK(*old == 40 && *counter == 42);
    part();
}

static void atomic_write(void)
{
    meet_with(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    struct ibv_qp_init_attr_ex init = {
        .send_cq = a.cq,
        .recv_cq = a.cq,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
        .pd = a.pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE,
    };
    CHECK(!ibv_destroy_qp(a.qp) && !ibv_destroy_qp(b.qp));
    CHECK((a.qp = ibv_create_qp_ex(context, &init)));
    init.send_cq = init.recv_cq = b.cq;
    init.pd = b.pd;
    CHECK((b.qp = ibv_create_qp_ex(context, &init)));
    a.place.qpn = a.qp->qp_num;
    b.place.qpn = b.qp->qp_num;
    connect_end(&a, &b.place);
    connect_end(&b, &a.place);

    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
    ibv_wr_start(qp);
    qp->wr_id = 1;
    ibv_wr_atomic_write(qp, b.mr->rkey, (uintptr_t)to, "8 bytes!");
    CHECK(!ibv_wr_complete(qp));
    done(&a);
    CHECK(memcmp(to, "8 bytes!", 8) == 0);
    part();
}

/* B binds a window to 256 bytes of its memory; A gets its key. */
static struct ibv_mw *bind_window(void)
{
    struct ibv_mw *window = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
    CHECK(window);
    struct ibv_send_wr *bad, wr = {
        .opcode = IBV_WR_BIND_MW,
        .bind_mw = { .mw = window,
                     .rkey = ibv_inc_rkey(window->rkey),
                     .bind_info = { b.mr, (uintptr_t)to + 1024, 256, IBV_ACCESS_REMOTE_WRITE } },
    };
    CHECK(!ibv_post_send(b.qp, &wr, &bad));
    done(&b);
    window->rkey = wr.bind_mw.rkey;
    return window;
}

static void window(void)
{
    meet_with(IBV_ACCESS_MW_BIND);
    struct ibv_mw *window = bind_window();
    post_send((struct ibv_send_wr){
        .opcode = IBV_WR_RDMA_WRITE,
        .wr.rdma = { (uintptr_t)to + 1024, window->rkey },
    }, 256);
    done(&a);
    CHECK(memcmp(to + 1024, from, 256) == 0);
    CHECK(!ibv_dealloc_mw(window));
    part();
}

static void send_inv(void)
{
    meet_with(IBV_ACCESS_MW_BIND);
    struct ibv_mw *window = bind_window();
    post_recv(to, 64);
    post_send((struct ibv_send_wr){
        .opcode = IBV_WR_SEND_WITH_INV,
        .invalidate_rkey = window->rkey,
    }, 64);
    done(&a);
    struct ibv_wc wc = done(&b);
    CHECK(wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == window->rkey);
    post_send((struct ibv_send_wr){
        .opcode = IBV_WR_RDMA_WRITE,
        .wr.rdma = { (uintptr_t)to + 1024, window->rkey },
    }, 64);
    CHECK(wait_one(a.cq).status == IBV_WC_REM_ACCESS_ERR); /* the key is dead */
    CHECK(!ibv_dealloc_mw(window));
    part();
}

static void shared_receives(void)
{
    meet_with(0);
    struct ibv_srq_init_attr attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
    struct ibv_srq *srq = ibv_create_srq(b.pd, &attr);
    CHECK(srq);
    change_qp(&a, IBV_QPT_RC, NULL);
    change_qp(&b, IBV_QPT_RC, srq); /* and so may any number of queue pairs */
    connect_end(&a, &b.place);
    connect_end(&b, &a.place);
    for (uint64_t i = 0; i < 2; i++) {
        struct ibv_sge sge = { (uintptr_t)to + 64 * i, 64, b.mr->lkey };
        struct ibv_recv_wr *bad, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };
        CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
    }
    for (uint64_t i = 0; i < 2; i++) {
        post_send((struct ibv_send_wr){ .opcode = IBV_WR_SEND }, 64);
        done(&a);
        struct ibv_wc wc = done(&b);
        CHECK(wc.wr_id == i && wc.qp_num == b.qp->qp_num);
    }
    destroy_end(&a);
    CHECK(!ibv_destroy_qp(b.qp) && !ibv_destroy_srq(srq) && !ibv_dereg_mr(b.mr));
    CHECK(!ibv_destroy_cq(b.cq) && !ibv_dealloc_pd(b.pd));
}

static void connect_uc(struct end *end, const struct place *peer)
{
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
    };
    CHECK(!ibv_modify_qp(end->qp, &init,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn,
        .ah_attr = { .is_global = 1, .port_num = 1,
                     .grh = { .dgid = peer->gid, .sgid_index = GID_INDEX, .hop_limit = 64 } },
    };
    CHECK(!ibv_modify_qp(end->qp, &rtr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN));
    struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = end->place.psn };
    CHECK(!ibv_modify_qp(end->qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static void unreliable_connection(void)
{
    meet_with(IBV_ACCESS_REMOTE_WRITE);
    change_qp(&a, IBV_QPT_UC, NULL);
    change_qp(&b, IBV_QPT_UC, NULL);
    connect_uc(&a, &b.place); /* no timeout, no retries, no READ: there are no answers */
    connect_uc(&b, &a.place);
    post_recv(to, 512);
    post_send((struct ibv_send_wr){
        .opcode = IBV_WR_RDMA_WRITE,
        .wr.rdma = { (uintptr_t)to + 512, b.mr->rkey },
    }, 512);
    done(&a);
    post_send((struct ibv_send_wr){ .opcode = IBV_WR_SEND }, 512);
    done(&a);
    CHECK(done(&b).byte_len == 512);
    CHECK(memcmp(to, from, 512) == 0 && memcmp(to + 512, from, 512) == 0);
    part();
}

/* A queue pair for datagrams has no peer, so RTR needs no address. */
static void activate_ud(struct end *end)
{
    change_qp(end, IBV_QPT_UD, NULL);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1111 };
    CHECK(!ibv_modify_qp(end->qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    attr.qp_state = IBV_QPS_RTR;
    CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static struct ibv_ah *way_to(union ibv_gid gid)
{
    struct ibv_ah_attr attr = {
        .is_global = 1, .port_num = 1,
        .grh = { .dgid = gid, .sgid_index = GID_INDEX, .hop_limit = 64 },
    };
    struct ibv_ah *ah = ibv_create_ah(a.pd, &attr);
    CHECK(ah);
    return ah;
}

static void datagram(void)
{
    meet_with(0);
    activate_ud(&a);
    activate_ud(&b);
    post_recv(to, 512); /* 40 bytes of it are for the GRH */
    struct ibv_ah *ah = way_to(b.place.gid);
    post_send((struct ibv_send_wr){
        .opcode = IBV_WR_SEND,
        .wr.ud = { .ah = ah, .remote_qpn = b.qp->qp_num, .remote_qkey = 0x1111 },
    }, 200);
    done(&a);
    struct ibv_wc wc = done(&b);
    CHECK(wc.byte_len == 40 + 200 && wc.src_qp == a.qp->qp_num);
    CHECK(memcmp(to + 40, from, 200) == 0);
    CHECK(!ibv_destroy_ah(ah));
    part();
}

static void multicast(void)
{
    meet_with(0);
    activate_ud(&a);
    activate_ud(&b);
    /* 239.255.7.7, as a GID */
    union ibv_gid group = { .raw = { [10] = 0xff, 0xff, 239, 255, 7, 7 } };
    CHECK(!ibv_attach_mcast(b.qp, &group, 0));
    post_recv(to, 512);
    struct ibv_ah *ah = way_to(group);
    post_send((struct ibv_send_wr){
        .opcode = IBV_WR_SEND,
        .wr.ud = { .ah = ah, .remote_qpn = 0xffffff, .remote_qkey = 0x1111 },
    }, 100);
    done(&a);
    CHECK(done(&b).byte_len == 40 + 100);
    CHECK(!ibv_detach_mcast(b.qp, &group, 0) && !ibv_destroy_ah(ah));
    part();
}

static void receiver_not_ready(void)
{
    meet_with(0);
    post_send((struct ibv_send_wr){ .opcode = IBV_WR_SEND }, 64); /* B has no receive for it */
    usleep(2000);
    post_recv(to, 64);
    done(&a); /* the adapter has tried again by itself: rnr_retry is 7, which is for ever */
    done(&b);
    part();
}

static void refused(void)
{
    meet_with(0); /* no IBV_ACCESS_REMOTE_WRITE */
    struct ibv_send_wr wr = {
        .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)to, b.mr->rkey },
    };
    post_send(wr, 128);
    CHECK(wait_one(a.cq).status == IBV_WC_REM_ACCESS_ERR);
    post_send(wr, 128); /* the queue pair is in the error state now */
    CHECK(wait_one(a.cq).status == IBV_WC_WR_FLUSH_ERR);
    CHECK(to[0] == 0);
    part();
}

int main(void)
{
    void (*scenes[])(void) = {
        send_message, send_imm, rdma_write, write_imm, rdma_read, compare_swap, fetch_add,
        atomic_write, window, send_inv, shared_receives, unreliable_connection, datagram,
        multicast, receiver_not_ready, refused,
    };
    context = open_first();
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        scenes[i]();
    CHECK(!ibv_close_device(context));
    printf("%zu scenes, as they should be\n", sizeof scenes / sizeof *scenes);
    return 0;
}
