/*
 * Runs programs of random requests between two ends and writes down everything that can be observed:
 * how requests and receives complete, the states of the queue pairs, and the memory. In both
 * roles, the same seed must give the same text.
 *
 *     random -d DEVICE -g GID_INDEX -p TCP_PORT -m PATH_MTU SEED [SERVER]
 *
 * Both ends make the same plans from the seed, so the server knows which receives to post. A plan is
 * a connection of its own, and most end with a request that must fail. Requests that are under way
 * together have memory of their own each, at both ends: what they do to each other is not laid down.
 */
#include "end.h"

enum { PLANS = 12, REQUESTS = 8, SLOT = 4096, SLOTS = 16 };

/* What the memory of an end is divided into, in slots. */
enum { REMOTE = 0, RECEIVES = SLOTS, LOCAL = 2 * SLOTS, ALL_SLOTS = 3 * SLOTS };

/* What is wrong with the last request of a plan. */
enum fault { NONE, BAD_RKEY, BEYOND, NOT_PERMITTED, BAD_LKEY, NO_RECEIVE, FAULTS };

struct request {
    enum ibv_wr_opcode opcode;
    enum fault fault;
    uint32_t len, sges, slot, offset, imm;
    uint64_t compare_add, swap;
    /* How many are posted together, from this one on; zero for those inside. */
    uint32_t batch;
};

struct plan {
    struct request requests[REQUESTS];
    int count;
};

/* ---- chance ---- */

static uint64_t state;

static uint32_t chance(uint32_t below)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1dull) >> 33) % below;
}

static const enum ibv_wr_opcode OPCODES[] = {
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP,
};

static int is_atomic(const struct request *request)
{
    return request->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
           request->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}

static int is_send(const struct request *request)
{
    return request->opcode == IBV_WR_SEND || request->opcode == IBV_WR_SEND_WITH_IMM;
}

static int takes_receive(const struct request *request)
{
    return is_send(request) || request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/*
 * Whether a request can fail in that way. Left out, because Soft-RoCE is known to differ: a receive
 * that is too small, and an atomic at an odd address, which it does not take at all.
 */
static int can_fail(const struct request *request, enum fault fault)
{
    switch (fault) {
    case NONE: return 1;
    case BAD_LKEY: return request->len > 0;
    case NO_RECEIVE: return is_send(request);
    case BEYOND: return !is_send(request) && request->len > 0 && !is_atomic(request);
    default: return !is_send(request) && request->len > 0;
    }
}

static struct request random_request(uint32_t base, int index)
{
    struct request request = { .opcode = OPCODES[chance(sizeof OPCODES / sizeof *OPCODES)],
        .slot = (base + index) % SLOTS, .imm = chance(1u << 30), .compare_add = chance(4),
        .swap = chance(1u << 30) };
    uint32_t lengths[] = { 0, 1, 2, 3, chance(64), 1023, 1024, 1025, chance(3000) };
    request.len = is_atomic(&request) ? 8 : lengths[chance(sizeof lengths / sizeof *lengths)];
    request.sges = is_atomic(&request) ? 1 : 1 + chance(3);
    request.offset = is_atomic(&request) ? 8 * chance(100) : chance(1000);
    return request;
}

/*
 * Takes request `index`, the last one, out of its batch. When a request of Soft-RoCE fails before
 * it is sent, and the answer to an earlier one is still on its way, the driver drops that answer and
 * neither request ever completes (docs/DIFFERENCES.md). Draws nothing, so that seeds keep their
 * meaning.
 */
static void post_alone(struct plan *plan, int index)
{
    int first = index;
    while (!plan->requests[first].batch)
        first--;
    if (first < index) {
        plan->requests[first].batch--;
        plan->requests[index].batch = 1;
    }
}

static struct plan random_plan(void)
{
    struct plan plan = { .count = 1 + chance(REQUESTS) };
    uint32_t base = chance(SLOTS);
    for (int i = 0; i < plan.count; i++)
        plan.requests[i] = random_request(base, i);
    struct request *last = &plan.requests[plan.count - 1];
    enum fault fault = chance(FAULTS);
    last->fault = can_fail(last, fault) ? fault : NONE;
    for (int i = 0; i < plan.count;) {
        uint32_t batch = 1 + chance(4), left = plan.count - i;
        plan.requests[i].batch = batch < left ? batch : left;
        i += plan.requests[i].batch;
    }
    if (last->fault == BAD_LKEY)
        post_alone(&plan, plan.count - 1);
    return plan;
}

/* ---- what is written down ---- */

static void write_down_state(struct end *end)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    must(!ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init), "ibv_query_qp");
    printf("  state %d\n", attr.qp_state);
}

static void write_down_memory(struct end *end)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < ALL_SLOTS * SLOT; i++)
        hash = (hash ^ end->memory[i]) * 0x100000001b3ull;
    printf("  memory %016" PRIx64 "\n", hash);
}

/*
 * The status of a request as an adapter has to report it. For a local key that is not one, Soft-RoCE
 * reports an error of the queue pair (6.1), or a flushed request (6.12).
 */
static enum ibv_wc_status status_of(struct end *end, const struct ibv_wc *wc, enum fault fault)
{
    int is_kernel = !strncmp(ibv_get_device_name(end->context->device), "rxe", 3);
    int is_known = wc->status == IBV_WC_LOC_QP_OP_ERR || wc->status == IBV_WC_WR_FLUSH_ERR;
    return is_kernel && fault == BAD_LKEY && is_known ? IBV_WC_LOC_PROT_ERR : wc->status;
}

static void write_down_request(struct end *end, const struct ibv_wc *wc, enum fault fault)
{
    printf("  %" PRIu64 " status %d", wc->wr_id, status_of(end, wc, fault));
    if (wc->status == IBV_WC_SUCCESS)
        printf(" opcode %d", wc->opcode);
    printf("\n");
}

/* Why a receive failed does not matter: Soft-RoCE blames some that others would flush. */
static void write_down_receive(const struct ibv_wc *wc)
{
    printf("  %" PRIu64, wc->wr_id);
    if (wc->status != IBV_WC_SUCCESS)
        printf(" failed");
    else
        printf(" opcode %d bytes %" PRIu32, wc->opcode, wc->byte_len);
    if (wc->status == IBV_WC_SUCCESS && wc->wc_flags & IBV_WC_WITH_IMM)
        printf(" imm %08" PRIx32, ntohl(wc->imm_data));
    printf("\n");
}

/* ---- both ends of a plan ---- */

static uint8_t *slot(struct end *end, int first, int index)
{
    return end->memory + (size_t)(first + index) * SLOT;
}

static void post_receives(struct end *end, const struct plan *plan)
{
    for (int i = 0; i < plan->count; i++) {
        if (!takes_receive(&plan->requests[i]) || plan->requests[i].fault == NO_RECEIVE)
            continue;
        struct ibv_sge sge = { (uintptr_t)slot(end, RECEIVES, i), SLOT, end->mr->lkey };
        struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
        must(!ibv_post_recv(end->qp, &wr, &bad), "ibv_post_recv");
    }
}

/* Where a request goes at the other end, and with which key. */
static uint64_t remote_address(struct end *end, const struct request *request, uint32_t *rkey)
{
    uint64_t at = end->there.memory + (uint64_t)request->slot * SLOT + request->offset;
    *rkey = end->there.rkey;
    switch (request->fault) {
    case BAD_RKEY: *rkey ^= 0x5500; return at;
    case BEYOND: return end->there.memory + ALL_SLOTS * SLOT - request->len + 1;
    case NOT_PERMITTED: *rkey = end->there.locked_rkey; return at;
    default: return at;
    }
}

static void post_request(struct end *end, const struct request *request, int index)
{
    struct ibv_sge sges[3];
    uint32_t done = 0, lkey = end->mr->lkey ^ (request->fault == BAD_LKEY ? 0x5500 : 0);
    for (uint32_t i = 0; i < request->sges; i++) {
        uint32_t len = i + 1 == request->sges ? request->len - done : request->len / 3;
        sges[i] = (struct ibv_sge) { (uintptr_t)slot(end, LOCAL, index) + done, len, lkey };
        done += len;
    }
    struct ibv_send_wr wr = { .wr_id = index, .sg_list = sges, .opcode = request->opcode,
        .num_sge = request->len ? request->sges : 0, .imm_data = htonl(request->imm) }, *bad;
    uint32_t rkey;
    uint64_t at = remote_address(end, request, &rkey);
    if (is_atomic(request)) {
        wr.wr.atomic.remote_addr = at;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = request->compare_add;
        wr.wr.atomic.swap = request->swap;
    } else if (!is_send(request)) {
        wr.wr.rdma.remote_addr = at;
        wr.wr.rdma.rkey = rkey;
    }
    must(!ibv_post_send(end->qp, &wr, &bad), "ibv_post_send");
}

static void ask(struct end *end, const struct plan *plan)
{
    for (int i = 0; i < plan->count; i += plan->requests[i].batch) {
        int batch = plan->requests[i].batch;
        for (int j = i; j < i + batch; j++)
            post_request(end, &plan->requests[j], j);
        for (int j = 0; j < batch; j++) {
            struct ibv_wc wc = complete(end);
            write_down_request(end, &wc, plan->requests[wc.wr_id].fault);
        }
    }
}

/* What has come until now, and what is left when the queue pair is stopped. */
static void tell_receives(struct end *end, const struct plan *plan)
{
    int left = 0;
    struct ibv_wc wc;
    for (int i = 0; i < plan->count; i++)
        left += takes_receive(&plan->requests[i]) && plan->requests[i].fault != NO_RECEIVE;
    struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
    must(!ibv_modify_qp(end->qp, &error, IBV_QP_STATE), "ERR");
    while (left-- > 0) {
        wc = complete(end);
        write_down_receive(&wc);
    }
    must(ibv_poll_cq(end->cq, 1, &wc) == 0, "no more completions");
}

static void run_plan(struct end *end, int number)
{
    struct plan plan = random_plan();
    const struct request *last = &plan.requests[plan.count - 1];
    printf("plan %d: %d requests, fault %d of opcode %d\n", number, plan.count, last->fault,
           last->opcode);
    for (size_t i = 0; i < ALL_SLOTS * SLOT; i++)
        end->memory[i] = i * 7 + i / 251 + number + end->is_client;
    make_qp(end);
    connect_qp(end, end->memory, TIMEOUT);
    if (!end->is_client)
        post_receives(end, &plan);
    together(end);
    if (end->is_client)
        ask(end, &plan);
    together(end);
    write_down_state(end);
    if (!end->is_client)
        tell_receives(end, &plan);
    write_down_memory(end);
    together(end);
    must(!ibv_destroy_qp(end->qp), "ibv_destroy_qp");
}

int main(int argc, char **argv)
{
    const char *seed;
    struct end end = begin(argc, argv, ALL_SLOTS * SLOT, &seed);
    state = 0x9e3779b97f4a7c15ull + strtoull(seed, NULL, 10);
    for (int i = 0; i < PLANS; i++)
        run_plan(&end, i);
    printf("%d plans: as it should be\n", PLANS);
    return 0;
}
