/* A program whose address space ends: every call that creates or enlarges something fails with
 * ENOMEM, what there is goes on working, and when memory is free again, so is everything. */
#include <arpa/inet.h>
#include <malloc.h>
#include <rdma/rdma_cma.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common.h"

static struct end *end;
static struct ibv_cq *wide_cq;
static struct ibv_srq *wide_srq;
static struct ibv_xrcd *xrcd;
static struct rdma_event_channel *events;

/* Lets the address space grow by so many bytes and no more; zero takes the limit away. */
static void limit(size_t more)
{
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    if (more) {
        long pages = 0;
        FILE *file = fopen("/proc/self/statm", "r");
        CHECK(file && fscanf(file, "%ld", &pages) == 1);
        fclose(file);
        limit.rlim_cur = pages * 4096 + more;
    }
    CHECK(!setrlimit(RLIMIT_AS, &limit));
}

static void *make_pd(void) { return ibv_alloc_pd(end->context); }
static void *make_cq(void) { return ibv_create_cq(end->context, 1, NULL, NULL, 0); }
static void *make_deep_cq(void) { return ibv_create_cq(end->context, 1 << 16, NULL, NULL, 0); }
static void *make_mr(void) { return ibv_reg_mr(end->pd, end->buffer, 64, IBV_ACCESS_LOCAL_WRITE); }
static void *make_null_mr(void) { return ibv_alloc_null_mr(end->pd); }
static void *make_mw(void) { return ibv_alloc_mw(end->pd, IBV_MW_TYPE_2); }

static void *make_td(void)
{
    struct ibv_td_init_attr attr = { 0 };
    return ibv_alloc_td(end->context, &attr);
}

static void *make_parent(void)
{
    struct ibv_parent_domain_init_attr attr = { .pd = end->pd };
    return ibv_alloc_parent_domain(end->context, &attr);
}

static void *make_xrcd(void)
{
    struct ibv_xrcd_init_attr attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        .fd = -1,
        .oflags = 0100, /* O_CREAT */
    };
    return ibv_open_xrcd(end->context, &attr);
}

static void *make_extended_cq(void)
{
    struct ibv_cq_init_attr_ex attr = { .cqe = 100, .wc_flags = IBV_WC_STANDARD_FLAGS };
    return ibv_create_cq_ex(end->context, &attr);
}

static void *make_qp_of(uint32_t depth, enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = {
        .send_cq = end->cq,
        .recv_cq = end->cq,
        .qp_type = type,
        .cap = { depth, depth, 1, 1, 64 },
    };
    return ibv_create_qp(end->pd, &init);
}

static void *make_qp(void) { return make_qp_of(8, IBV_QPT_RC); }
static void *make_deep_qp(void) { return make_qp_of(16000, IBV_QPT_UD); }

static void *make_srq(void)
{
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 4000, .max_sge = 1 } };
    return ibv_create_srq(end->pd, &init);
}

static void *make_xrc_srq(void)
{
    struct ibv_srq_init_attr_ex init = {
        .attr = { .max_wr = 16, .max_sge = 1 },
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ |
                     IBV_SRQ_INIT_ATTR_PD,
        .srq_type = IBV_SRQT_XRC,
        .pd = end->pd,
        .xrcd = xrcd,
        .cq = end->cq,
    };
    return ibv_create_srq_ex(end->context, &init);
}

static void *make_ah(void)
{
    struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
    CHECK(!ibv_query_gid(end->context, 1, 0, &attr.grh.dgid));
    return ibv_create_ah(end->pd, &attr);
}

static void *make_dm(void)
{
    struct ibv_alloc_dm_attr attr = { .length = 4096 };
    return ibv_alloc_dm(end->context, &attr);
}

static void *make_id(void)
{
    struct rdma_cm_id *id = NULL;
    return rdma_create_id(events, &id, NULL, RDMA_PS_TCP) ? NULL : id;
}

#define DESTROYER(name, type, call) \
    static int name(void *made) { return call((type *)made); }
DESTROYER(free_pd, struct ibv_pd, ibv_dealloc_pd)
DESTROYER(free_cq, struct ibv_cq, ibv_destroy_cq)
DESTROYER(free_mr, struct ibv_mr, ibv_dereg_mr)
DESTROYER(free_mw, struct ibv_mw, ibv_dealloc_mw)
DESTROYER(free_td, struct ibv_td, ibv_dealloc_td)
DESTROYER(free_xrcd, struct ibv_xrcd, ibv_close_xrcd)
DESTROYER(free_qp, struct ibv_qp, ibv_destroy_qp)
DESTROYER(free_srq, struct ibv_srq, ibv_destroy_srq)
DESTROYER(free_ah, struct ibv_ah, ibv_destroy_ah)
DESTROYER(free_dm, struct ibv_dm, ibv_free_dm)
DESTROYER(free_id, struct rdma_cm_id, rdma_destroy_id)

static const struct kind {
    const char *name;
    void *(*make)(void);
    int (*free)(void *made);
} kinds[] = {
    { "ibv_alloc_pd", make_pd, free_pd },
    { "ibv_create_cq", make_cq, free_cq },
    { "ibv_create_cq (65536)", make_deep_cq, free_cq },
    { "ibv_create_cq_ex", make_extended_cq, free_cq },
    { "ibv_reg_mr", make_mr, free_mr },
    { "ibv_alloc_null_mr", make_null_mr, free_mr },
    { "ibv_alloc_mw", make_mw, free_mw },
    { "ibv_alloc_td", make_td, free_td },
    { "ibv_alloc_parent_domain", make_parent, free_pd },
    { "ibv_open_xrcd", make_xrcd, free_xrcd },
    { "ibv_create_qp", make_qp, free_qp },
    { "ibv_create_qp (16000)", make_deep_qp, free_qp },
    { "ibv_create_srq", make_srq, free_srq },
    { "ibv_create_srq_ex", make_xrc_srq, free_srq },
    { "ibv_create_ah", make_ah, free_ah },
    { "ibv_alloc_dm", make_dm, free_dm },
    { "rdma_create_id", make_id, free_id },
};
enum { KINDS = sizeof kinds / sizeof *kinds, MOST = 1 << 20 };

static void *made[MOST];

/* Makes as many of a kind as there is memory for, or the adapter allows. */
static void exhaust(const struct kind *kind)
{
    int count = 0;
    while (count < MOST && (made[count] = kind->make()))
        count++;
    if (count < MOST && errno != ENOMEM) {
        fprintf(stderr, "%s, after %d: %s\n", kind->name, count, strerror(errno));
        _exit(1);
    }
    fprintf(stderr, "%s: %d\n", kind->name, count);
    /* One of the old works, and there is memory again when the others are gone. */
    say(end, "full");
    for (int i = 0; i < count; i++)
        CHECK(!kind->free(made[i]));
    void *again = kind->make();
    CHECK(again);
    CHECK(!kind->free(again));
}

/* Takes all memory that there is, in ever smaller pieces, and returns a list of it. */
static void *hog(void)
{
    void **all = NULL, **piece;
    for (size_t size = 1 << 24; size >= 16; size /= 2)
        while ((piece = malloc(size))) {
            *piece = all;
            all = piece;
        }
    return all;
}

static void unhog(void *all)
{
    while (all) {
        void *next = *(void **)all;
        free(all);
        all = next;
    }
    malloc_trim(0);
}

/* Calls of the connection manager with ids that exist. */
static void connect_without_memory(struct rdma_cm_id *bound, struct rdma_cm_id *unbound,
                                   int results[3], int errors[3])
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7471) };
    inet_pton(AF_INET, "127.122.0.12", &to.sin_addr);
    errno = 0;
    results[0] = rdma_listen(bound, 8);
    errors[0] = errno;
    errno = 0;
    results[1] = rdma_resolve_addr(unbound, NULL, (struct sockaddr *)&to, 1000);
    errors[1] = errno;
    errno = 0;
    results[2] = rdma_bind_addr(unbound, (struct sockaddr *)&to);
    errors[2] = errno;
}

/* Nothing can be made without memory, and nothing ends the program. */
static void without_memory(void)
{
    void *none[KINDS] = { NULL }, *all;
    int error[KINDS] = { 0 };
    struct ibv_recv_wr *bad;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    struct ibv_qp *deep = make_deep_qp();
    CHECK(deep);
    CHECK(!ibv_modify_qp(deep, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    struct rdma_cm_id *bound = make_id(), *unbound = make_id();
    struct sockaddr_in at = { .sin_family = AF_INET };
    inet_pton(AF_INET, "127.122.0.12", &at.sin_addr);
    CHECK(bound && unbound && !rdma_bind_addr(bound, (struct sockaddr *)&at));
    limit(1 << 22);
    all = hog();
    for (int i = 0; i < KINDS; i++) {
        errno = 0;
        none[i] = kinds[i].make();
        error[i] = errno;
    }
    errno = 0;
    struct ibv_srq_attr larger = { .max_wr = 16000 };
    int cq = ibv_resize_cq(wide_cq, 1 << 18), srq = ibv_modify_srq(wide_srq, &larger, IBV_SRQ_MAX_WR);
    struct rdma_event_channel *channel = rdma_create_event_channel();
    int channel_error = errno;
    struct ibv_comp_channel *comp = ibv_create_comp_channel(end->context);
    int comp_error = errno;
    int results[3], errors[3];
    connect_without_memory(bound, unbound, results, errors);
    /* Those that existed before go on, and one that was never used takes what it can. */
    for (int i = 0; i < 1000; i++)
        say(end, "none");
    int posted = 0;
    while (!ibv_post_recv(deep, &(struct ibv_recv_wr){ 0 }, &bad))
        posted++;
    for (int i = 0; i < 1000; i++)
        say(end, "none");
    unhog(all);
    for (int i = 0; i < KINDS; i++)
        if (none[i] || error[i] != ENOMEM) {
            fprintf(stderr, "%s: %p, %s\n", kinds[i].name, none[i], strerror(error[i]));
            _exit(1);
        }
    CHECK(cq == ENOMEM && srq == ENOMEM && posted < 16000);
    for (int i = 0; i < 3; i++)
        CHECK(results[i] == -1 && errors[i] == ENOMEM);
    CHECK(!rdma_listen(bound, 8));
    CHECK(!free_id(bound) && !free_id(unbound));
    for (; posted < 16000; posted++)
        CHECK(!ibv_post_recv(deep, &(struct ibv_recv_wr){ 0 }, &bad));
    CHECK(!free_qp(deep));
    CHECK(!channel && channel_error == ENOMEM && !comp && comp_error == ENOMEM);
    for (int i = 0; i < KINDS; i++) {
        void *again = kinds[i].make();
        CHECK(again && !kinds[i].free(again));
    }
    CHECK(!ibv_resize_cq(wide_cq, 1 << 10));
}

int main(void)
{
    struct ibv_context *context = open_nth(0);
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
    CHECK((end = calloc(1, sizeof *end)));
    make(end, context);
    connect_self(end);
    say(end, "first");
    CHECK((wide_cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
    CHECK((wide_srq = ibv_create_srq(end->pd, &init)));
    CHECK((xrcd = make_xrcd()));
    CHECK((events = rdma_create_event_channel()));
    CHECK(!free_id(make_id()));
    memset(made, 1, sizeof made);
    for (int i = 0; i < KINDS; i++) {
        limit(3 << 20);
        exhaust(&kinds[i]);
        limit(0);
        malloc_trim(0);
    }
    without_memory();
    say(end, "last");
    rdma_destroy_event_channel(events);
    CHECK(!ibv_close_xrcd(xrcd));
    CHECK(!ibv_destroy_srq(wide_srq));
    CHECK(!ibv_destroy_cq(wide_cq));
    destroy(end);
    CHECK(!ibv_close_device(context));
    return 0;
}
