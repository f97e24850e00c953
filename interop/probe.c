/*
 * One end of a reliable connection that checks what the programs of the distribution do not: every
 * byte of messages of awkward lengths, the results of atomics, and how errors are reported.
 *
 *     probe -d DEVICE -g GID_INDEX -p TCP_PORT -m PATH_MTU SCENARIO [SERVER]
 *
 * Without SERVER it is the server. Both ends take turns over TCP. An end that sees something
 * that the specification does not allow says what and exits with status 1.
 */
#include "end.h"

#include <signal.h>

enum { LONGEST = 8 << 20, GUARD = 64, GUARD_BYTE = 0xa5, SHORT_TIMEOUT = 14 };

static struct ibv_wc expect(struct end *end, enum ibv_wc_status status)
{
    struct ibv_wc wc = complete(end);
    if (wc.status != status)
        fail("completed with `%s` and not `%s`", ibv_wc_status_str(wc.status),
             ibv_wc_status_str(status));
    return wc;
}

/* Does one thing with `len` bytes from or to `at`. */
static void post(struct end *end, enum ibv_wr_opcode opcode, uint8_t *at, size_t len, uint32_t rkey)
{
    struct ibv_sge sge = { (uintptr_t)at, len, end->mr->lkey };
    struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = len ? 1 : 0, .opcode = opcode }, *bad;
    wr.wr.rdma.remote_addr = end->there.memory;
    wr.wr.rdma.rkey = rkey;
    must(!ibv_post_send(end->qp, &wr, &bad), "ibv_post_send");
}

static void atomic(struct end *end, enum ibv_wr_opcode opcode, uint64_t compare_add, uint64_t swap)
{
    struct ibv_sge sge = { (uintptr_t)end->memory, 8, end->mr->lkey };
    struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
    wr.wr.atomic.remote_addr = end->there.memory;
    wr.wr.atomic.rkey = end->there.rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    must(!ibv_post_send(end->qp, &wr, &bad), "ibv_post_send");
    expect(end, IBV_WC_SUCCESS);
}

static void post_receive(struct end *end, uint8_t *at, size_t len)
{
    struct ibv_sge sge = { (uintptr_t)at, len, end->mr->lkey };
    struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = len ? 1 : 0 }, *bad;
    must(!ibv_post_recv(end->qp, &wr, &bad), "ibv_post_recv");
}

/* ---- bytes ---- */

static uint8_t byte_at(size_t i, size_t salt)
{
    return i * 7 + i / 251 + i / 65521 + salt;
}

static void fill(uint8_t *at, size_t len, size_t salt)
{
    for (size_t i = 0; i < len; i++)
        at[i] = byte_at(i, salt);
}

/* What is received into, with nothing in it. */
static uint8_t *blank(struct end *end, size_t len)
{
    uint8_t *at = end->memory + LONGEST + GUARD;
    memset(at, GUARD_BYTE, len + GUARD);
    return at;
}

static void check(const uint8_t *at, size_t len, size_t salt, const char *what)
{
    for (size_t i = 0; i < len; i++)
        if (at[i] != byte_at(i, salt))
            fail("%s of %zu bytes: byte %zu is wrong", what, len, i);
    for (size_t i = len; i < len + GUARD; i++)
        if (at[i] != GUARD_BYTE)
            fail("%s of %zu bytes: byte %zu behind it was touched", what, len, i - len);
}

/* ---- scenarios: what the client does, and what the server must see ---- */

static void one_length(struct end *end, size_t len)
{
    uint8_t *in = blank(end, len);
    fill(end->memory, len, len);
    if (!end->is_client)
        post_receive(end, in, len);
    together(end);
    if (end->is_client) {
        post(end, IBV_WR_SEND, end->memory, len, 0);
        expect(end, IBV_WC_SUCCESS);
    } else {
        struct ibv_wc wc = expect(end, IBV_WC_SUCCESS);
        if (wc.byte_len != len)
            fail("received %" PRIu32 " bytes and not %zu", wc.byte_len, len);
        check(in, len, len, "a send");
        blank(end, len);
        fill(end->memory, len, len + 1);
    }
    together(end);
    if (end->is_client) {
        fill(end->memory, len, len + 2);
        post(end, IBV_WR_RDMA_WRITE, end->memory, len, end->there.rkey);
        expect(end, IBV_WC_SUCCESS);
    }
    together(end);
    if (!end->is_client) {
        check(in, len, len + 2, "a write");
        fill(in, len, len + 3);
    }
    together(end);
    if (end->is_client) {
        post(end, IBV_WR_RDMA_READ, in, len, end->there.rkey);
        expect(end, IBV_WC_SUCCESS);
        check(in, len, len + 3, "a read");
    }
    together(end);
}

static void lengths(struct end *end)
{
    size_t all[] = { 0, 1, end->mtu - 1, end->mtu, end->mtu + 1, 65536 + 3, LONGEST };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        one_length(end, all[i]);
}

static void atomics(struct end *end)
{
    uint64_t *word = (uint64_t *)blank(end, 8), *old = (uint64_t *)end->memory;
    *word = 40;
    together(end);
    if (end->is_client) {
        atomic(end, IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0);
        must(*old == 40, "fetching 40");
        atomic(end, IBV_WR_ATOMIC_CMP_AND_SWP, 41, 7);
        must(*old == 42, "comparing 42 with 41");
        atomic(end, IBV_WR_ATOMIC_CMP_AND_SWP, 42, UINT64_MAX);
        must(*old == 42, "comparing 42 with 42");
        atomic(end, IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0);
        must(*old == UINT64_MAX, "fetching what was swapped in");
    }
    together(end);
    if (!end->is_client)
        must(*word == 4, "adding beyond the largest number");
}

static void must_be_in_error(struct end *end)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    must(!ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init), "ibv_query_qp");
    if (attr.qp_state != IBV_QPS_ERR)
        fail("the queue pair is in state %d and not in error", attr.qp_state);
}

/* A key that is not one: remote access error, and both ends are in error. */
static void bad_rkey(struct end *end)
{
    if (end->is_client) {
        post(end, IBV_WR_RDMA_WRITE, end->memory, 100, end->there.rkey ^ 0x5500);
        expect(end, IBV_WC_REM_ACCESS_ERR);
    }
    together(end);
    must_be_in_error(end);
}

/* The server posts no receive: the sender gives up after its retries. */
static void no_receive(struct end *end)
{
    if (end->is_client) {
        post(end, IBV_WR_SEND, end->memory, 100, 0);
        expect(end, IBV_WC_RNR_RETRY_EXC_ERR);
        must_be_in_error(end);
    }
    together(end);
}

/* The server is killed: the client gives up, and what it posts then is flushed. */
static void killed(struct end *end)
{
    char gone;
    if (!end->is_client)
        kill(getpid(), SIGKILL);
    must(recv(end->tcp, &gone, 1, 0) <= 0, "the end of the server");
    post(end, IBV_WR_SEND, end->memory, 100, 0);
    expect(end, IBV_WC_RETRY_EXC_ERR);
    must_be_in_error(end);
    post(end, IBV_WR_SEND, end->memory, 100, 0);
    expect(end, IBV_WC_WR_FLUSH_ERR);
}

static const struct {
    const char *name;
    void (*run)(struct end *);
    int timeout;
} SCENARIOS[] = {
    { "lengths", lengths, TIMEOUT },
    { "atomics", atomics, TIMEOUT },
    { "bad-rkey", bad_rkey, TIMEOUT },
    { "no-receive", no_receive, TIMEOUT },
    { "killed", killed, SHORT_TIMEOUT },
};

int main(int argc, char **argv)
{
    const char *scenario;
    /* Ours to send from, then a guard, then what is received, then a guard. */
    struct end end = begin(argc, argv, 2 * (LONGEST + GUARD), &scenario);
    for (size_t i = 0; i < sizeof SCENARIOS / sizeof *SCENARIOS; i++) {
        if (strcmp(SCENARIOS[i].name, scenario))
            continue;
        make_qp(&end);
        connect_qp(&end, end.memory + LONGEST + GUARD, SCENARIOS[i].timeout);
        SCENARIOS[i].run(&end);
        printf("%s: as it should be\n", scenario);
        return 0;
    }
    return 2;
}
