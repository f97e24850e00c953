/*
 * Runs a program that the swarm has drawn (`swarm --program`, crates/sim/src/program.rs): flows of
 * requests in both directions at once, of which everything is known beforehand. Writes down how all
 * of it completes, and fails unless the memory is in the end as the simulation says.
 *
 *     swarm -d DEVICE -g GID_INDEX -p TCP_PORT -m PATH_MTU SEED [SERVER]
 *
 * The server is node 0 of the simulation, the client node 1. The text is beside this program.
 */
#include "end.h"

#include <libgen.h>

enum { MEMORY = 1 << 20 };

enum { FLOWS = 8, REGIONS = 64, REQUESTS = 128, PIECES = 32, INLINE = 256, NAME = 8 };

struct piece {
    unsigned mr, at, len;
};

struct request {
    int is_send, is_inline;
    unsigned opcode, flags, imm, remote_mr, remote_at, count;
    uint64_t operands[2];
    struct piece pieces[PIECES];
    uint8_t bytes[INLINE];
    /* What became of it. */
    int is_done;
    struct ibv_wc wc;
};

struct flow {
    unsigned pmtu, recvs, sends, reads;
    struct request *requests; /* receives first */
    struct ibv_qp *qp;
};

struct node {
    size_t len;
    uint8_t *bytes;
    unsigned regions;
    struct piece region[REGIONS]; /* `mr` is the rights */
    struct flow flows[FLOWS];
    uint64_t hash;
};

static unsigned flows;
static struct node nodes[2];

/* ---- the text ---- */

static FILE *text;

static unsigned number(void)
{
    unsigned value;
    must(fscanf(text, "%u", &value) == 1, "a number");
    return value;
}

static void word(const char *wanted)
{
    char found[NAME + 1];
    must(fscanf(text, "%8s", found) == 1, "a word");
    if (strcmp(found, wanted))
        fail("`%s` and not `%s`", found, wanted);
}

static int digit(int c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

static void read_bytes(uint8_t *to, size_t len)
{
    int first = fgetc(text);
    while (first == ' ' || first == '\n')
        first = fgetc(text);
    if (len == 0)
        ungetc(first, text);
    for (size_t i = 0; i < len; i++) {
        to[i] = digit(first) << 4 | digit(fgetc(text));
        first = fgetc(text);
    }
}

static void read_pieces(struct request *request)
{
    must(request->count <= PIECES, "so many pieces");
    for (unsigned i = 0; i < request->count; i++) {
        struct piece *piece = &request->pieces[i];
        piece->mr = number();
        piece->at = number();
        piece->len = number();
    }
}

static void read_send(struct request *request)
{
    char kind[NAME + 1];
    must(fscanf(text, "%8s", kind) == 1, "a request");
    request->is_send = 1;
    request->is_inline = !strcmp(kind, "inline");
    request->opcode = number();
    request->flags = number();
    request->imm = number();
    request->remote_mr = number();
    request->remote_at = number();
    for (int i = 0; i < 2; i++)
        must(fscanf(text, "%" SCNu64, &request->operands[i]) == 1, "an operand");
    request->count = number();
    if (!request->is_inline) {
        read_pieces(request);
        return;
    }
    must(request->count <= INLINE, "so many bytes");
    read_bytes(request->bytes, request->count);
}

static void read_flow(struct flow *flow)
{
    word("flow");
    flow->pmtu = number();
    flow->recvs = number();
    flow->sends = number();
    flow->reads = number();
    must(flow->recvs + flow->sends <= REQUESTS, "so many requests");
    flow->requests = calloc(flow->recvs + flow->sends + 1, sizeof *flow->requests);
    for (unsigned i = 0; i < flow->recvs; i++) {
        word("recv");
        flow->requests[i].count = number();
        read_pieces(&flow->requests[i]);
    }
    for (unsigned i = 0; i < flow->sends; i++)
        read_send(&flow->requests[flow->recvs + i]);
}

static void read_node(struct node *node)
{
    word("node");
    number();
    word("bytes");
    node->len = number();
    node->bytes = malloc(node->len);
    must(node->bytes != NULL, "memory");
    read_bytes(node->bytes, node->len);
    word("regions");
    node->regions = number();
    must(node->regions <= REGIONS, "so many regions");
    for (unsigned i = 0; i < node->regions; i++) {
        struct piece *region = &node->region[i];
        region->at = number();
        region->len = number();
        region->mr = number();
    }
    for (unsigned i = 0; i < flows; i++)
        read_flow(&node->flows[i]);
}

static void read_program(const char *seed)
{
    char path[4096] = { 0 }, name[4200];
    must(readlink("/proc/self/exe", path, sizeof path - 1) > 0, "finding myself");
    snprintf(name, sizeof name, "%s/swarm-%s.txt", dirname(path), seed);
    text = fopen(name, "r");
    must(text != NULL, "opening the program");
    word("flows");
    flows = number();
    must(flows <= FLOWS, "so many flows");
    read_node(&nodes[0]);
    read_node(&nodes[1]);
    word("memory");
    for (int i = 0; i < 2; i++)
        must(fscanf(text, "%" SCNx64, &nodes[i].hash) == 1, "a hash");
}

/* ---- running it ---- */

static struct ibv_mr *mrs[REGIONS];
static uint32_t peer_keys[REGIONS];
static uint64_t peer_memory;

/* Every region has a registration of its own, with the rights that it had in the simulation. */
static void register_all(struct end *end, struct node *own)
{
    uint32_t keys[REGIONS] = { 0 };
    uint64_t memory = (uintptr_t)end->memory;
    for (unsigned i = 0; i < own->regions; i++) {
        struct piece *region = &own->region[i];
        mrs[i] = ibv_reg_mr(end->pd, end->memory + region->at, region->len, region->mr);
        must(mrs[i] != NULL, "ibv_reg_mr");
        keys[i] = mrs[i]->rkey;
    }
    swap(end, keys, peer_keys, sizeof keys);
    swap(end, &memory, &peer_memory, sizeof memory);
}

static void make_flow(struct end *end, struct flow *own)
{
    struct ibv_qp_init_attr init = {
        .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = own->sends + 1, .max_recv_wr = own->recvs + 1,
            .max_send_sge = PIECES, .max_recv_sge = 8, .max_inline_data = INLINE },
    };
    end->qp = own->qp = ibv_create_qp(end->pd, &init);
    must(own->qp != NULL, "ibv_create_qp");
    end->mtu = own->pmtu;
    end->reads = own->reads;
    connect_qp(end, end->memory, TIMEOUT);
}

static int sges_of(struct end *end, const struct request *request, struct ibv_sge *sges)
{
    for (unsigned i = 0; i < request->count; i++) {
        const struct piece *piece = &request->pieces[i];
        sges[i] = (struct ibv_sge) { (uintptr_t)end->memory + piece->at, piece->len,
                                     mrs[piece->mr]->lkey };
    }
    return request->count;
}

static void post_receive(struct end *end, struct flow *flow, struct request *request)
{
    struct ibv_sge sges[PIECES];
    struct ibv_recv_wr wr = { .wr_id = (uintptr_t)request, .sg_list = sges,
        .num_sge = sges_of(end, request, sges) }, *bad;
    must(!ibv_post_recv(flow->qp, &wr, &bad), "ibv_post_recv");
}

static void post_send(struct end *end, struct flow *flow, struct request *request)
{
    struct ibv_sge sges[PIECES];
    struct ibv_send_wr wr = { .wr_id = (uintptr_t)request, .sg_list = sges,
        .opcode = request->opcode, .send_flags = request->flags,
        .imm_data = htonl(request->imm) }, *bad;
    uint64_t at = peer_memory + request->remote_at;
    uint32_t rkey = peer_keys[request->remote_mr];
    if (request->is_inline) {
        sges[0] = (struct ibv_sge) { (uintptr_t)request->bytes, request->count, 0 };
        wr.num_sge = 1;
    } else {
        wr.num_sge = sges_of(end, request, sges);
    }
    if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = at;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = request->operands[0];
        wr.wr.atomic.swap = request->operands[1];
    } else {
        wr.wr.rdma.remote_addr = at;
        wr.wr.rdma.rkey = rkey;
    }
    must(!ibv_post_send(flow->qp, &wr, &bad), "ibv_post_send");
}

static int is_reported(const struct request *request)
{
    return !request->is_send || request->flags & IBV_SEND_SIGNALED;
}

/* Posts everything, a request of each flow in turn, and waits for everything. */
static void run(struct end *end, struct node *own)
{
    unsigned left = 0, most = 0;
    for (unsigned f = 0; f < flows; f++) {
        struct flow *flow = &own->flows[f];
        for (unsigned i = 0; i < flow->recvs; i++)
            post_receive(end, flow, &flow->requests[i]);
        for (unsigned i = 0; i < flow->recvs + flow->sends; i++)
            left += is_reported(&flow->requests[i]);
        most = flow->sends > most ? flow->sends : most;
    }
    together(end);
    for (unsigned i = 0; i < most; i++)
        for (unsigned f = 0; f < flows; f++)
            if (i < own->flows[f].sends)
                post_send(end, &own->flows[f], &own->flows[f].requests[own->flows[f].recvs + i]);
    for (; left > 0; left--) {
        struct ibv_wc wc = complete(end);
        struct request *request = (void *)(uintptr_t)wc.wr_id;
        must(is_reported(request) && !request->is_done, "one completion for each");
        request->is_done = 1;
        request->wc = wc;
        /* What follows would only be flushed, and part of it never be told. */
        if (wc.status != IBV_WC_SUCCESS)
            fail("%s of opcode %u: %s", request->is_send ? "a request" : "a receive",
                 request->opcode, ibv_wc_status_str(wc.status));
    }
    together(end);
}

/* ---- what is written down ---- */

static void write_down(unsigned number, const struct request *request)
{
    const struct ibv_wc *wc = &request->wc;
    if (!is_reported(request))
        return;
    printf("  %u status %d opcode %d", number, wc->status, wc->opcode);
    if (!request->is_send)
        printf(" bytes %" PRIu32, wc->byte_len);
    if (!request->is_send && wc->wc_flags & IBV_WC_WITH_IMM)
        printf(" imm %08" PRIx32, ntohl(wc->imm_data));
    printf("\n");
}

static void tell(struct end *end, const struct node *own)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (unsigned f = 0; f < flows; f++) {
        const struct flow *flow = &own->flows[f];
        printf("plan %u: path MTU %u, %u receives, %u sends\n", f, flow->pmtu, flow->recvs,
               flow->sends);
        for (unsigned i = 0; i < flow->recvs + flow->sends; i++)
            write_down(i, &flow->requests[i]);
    }
    for (size_t i = 0; i < own->len; i++)
        hash = (hash ^ end->memory[i]) * 0x100000001b3ull;
    printf("  memory %016" PRIx64 "\n", hash);
    if (hash != own->hash)
        fail("the simulation says %016" PRIx64, own->hash);
}

int main(int argc, char **argv)
{
    const char *seed;
    struct end end = begin(argc, argv, MEMORY, &seed);
    read_program(seed);
    struct node *own = &nodes[end.is_client];
    must(own->len <= MEMORY, "so much memory");
    memcpy(end.memory, own->bytes, own->len);
    register_all(&end, own);
    for (unsigned f = 0; f < flows; f++)
        make_flow(&end, &own->flows[f]);
    run(&end, own);
    tell(&end, own);
    printf("%u flows: as it should be\n", flows);
    return 0;
}
