/* What goes wrong, with the status that a program sees, and how it goes on.
 *
 * Under `feroce run --lint` the library says what to do about failures. */
#include "example.h"

static char memory[2][256];
static struct end here, there;

/* (Re)connects the two queue pairs. In the error state they can only be reset or destroyed. */
static void connect_both(void)
{
    struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
    CHECK(!ibv_modify_qp(here.qp, &reset, IBV_QP_STATE));
    CHECK(!ibv_modify_qp(there.qp, &reset, IBV_QP_STATE));
    connect_end(&here, &there.place);
    connect_end(&there, &here.place);
}

static void post(uint64_t wr_id, enum ibv_wr_opcode opcode, uint32_t length, uint32_t lkey,
                 uint32_t rkey)
{
    struct ibv_sge sge = { (uintptr_t)memory[0], length, lkey };
    struct ibv_send_wr *bad, wr = {
        .wr_id = wr_id,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = opcode,
        .wr.rdma = { .remote_addr = there.place.addr, .rkey = rkey },
    };
    CHECK(!ibv_post_send(here.qp, &wr, &bad));
}

static void receive(uint32_t length)
{
    struct ibv_sge sge = { (uintptr_t)memory[1], length, there.mr->lkey };
    struct ibv_recv_wr *bad, wr = { .wr_id = 9, .sg_list = &sge, .num_sge = 1 };
    CHECK(!ibv_post_recv(there.qp, &wr, &bad));
}

static void expect(const char *what, struct ibv_cq *cq, enum ibv_wc_status status)
{
    struct ibv_wc wc = wait_one(cq);
    printf("%-34s %2d, %s\n", what, wc.status, ibv_wc_status_str(wc.status));
    CHECK(wc.status == status);
}

int main(void)
{
    struct ibv_context *context = open_first();
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    here = make_end(context, memory[0], sizeof memory[0], access);
    there = make_end(context, memory[1], sizeof memory[1], access);

    /* A call that refuses changes nothing. This one skips a state. */
    struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS };
    int refused = ibv_modify_qp(here.qp, &rts, IBV_QP_STATE);
    printf("%-34s %s\n", "from RESET to RTS:", strerror(refused));
    CHECK(refused == EINVAL);

    uint32_t lkey = here.mr->lkey, rkey = there.mr->rkey;
    connect_both();
    post(1, IBV_WR_RDMA_WRITE, 64, lkey, rkey ^ 1);
    post(2, IBV_WR_RDMA_WRITE, 64, lkey, rkey);
    expect("WRITE with a wrong rkey:", here.cq, IBV_WC_REM_ACCESS_ERR);
    expect("the WRITE behind it:", here.cq, IBV_WC_WR_FLUSH_ERR);

    connect_both();
    post(3, IBV_WR_SEND, 64, lkey ^ 1, 0);
    expect("SEND with a wrong lkey:", here.cq, IBV_WC_LOC_PROT_ERR);

    connect_both();
    receive(16);
    post(4, IBV_WR_SEND, 64, lkey, 0);
    expect("SEND of 64 bytes, receive of 16:", here.cq, IBV_WC_REM_INV_REQ_ERR);
    expect("the receive:", there.cq, IBV_WC_LOC_LEN_ERR);

    connect_both();
    receive(64);
    post(5, IBV_WR_SEND, 64, lkey, 0);
    expect("after RESET, SEND:", here.cq, IBV_WC_SUCCESS);
    expect("the receive:", there.cq, IBV_WC_SUCCESS);

    destroy_end(&here);
    destroy_end(&there);
    CHECK(!ibv_close_device(context));
    return 0;
}
