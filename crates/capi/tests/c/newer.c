/* Calls of releases of rdma-core that are newer than the headers here. */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

/* From verbs.h of rdma-core 65. */
struct ibv_buf;
struct ibv_dmah;
struct dmah_attr {
    uint32_t comp_mask;
    uint32_t cpu_id;
    uint8_t ph;
    uint8_t tph_mem_type;
};
struct mr_attr {
    size_t length;
    int access;
    uint64_t comp_mask;
    uint64_t iova;
    void *addr;
    int fd;
    uint64_t fd_offset;
    struct ibv_dmah *dmah;
    struct ibv_buf *buf;
};
enum { DMAH_CPU = 1, DMAH_PH = 2, DMAH_MEM_TYPE = 4 };
enum { MR_ADDR = 1 << 1, MR_DMAH = 1 << 4, MR_BUF = 1 << 5 };
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
void ibv_free_buf(struct ibv_buf *buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length,
                  int access);
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct mr_attr *attr);
struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct dmah_attr *attr);
int ibv_dealloc_dmah(struct ibv_dmah *dmah);
int ibv_query_port_speed(struct ibv_context *context, uint32_t port_num, uint64_t *speed);

/* Memory that is mapped only after its registration, and all memory at once: on-demand paging. */
static void on_demand(struct ibv_context *context)
{
    struct ibv_device_attr_ex device;
    uint32_t rc = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
                  IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    CHECK(!ibv_query_device_ex(context, NULL, &device));
    CHECK(device.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
    CHECK((device.odp_caps.per_transport_caps.rc_odp_caps & rc) == rc);

    struct end *end = calloc(1, sizeof *end);
    CHECK(end);
    make(end, context);
    connect_self(end);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND;
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *pages = mmap(NULL, 8192, PROT_NONE, flags, -1, 0);
    CHECK(pages != MAP_FAILED);
    struct ibv_mr *some = ibv_reg_mr(end->pd, pages, 8192, access);
    struct ibv_mr *all = ibv_reg_mr(end->pd, NULL, SIZE_MAX, access);
    CHECK(some && all);
    CHECK(mmap(pages, 8192, prot, flags | MAP_FIXED, -1, 0) == pages);
    strcpy(pages, "late");
    const struct {
        struct ibv_mr *from, *to;
        int at;
    } writes[] = { { some, all, 4096 }, { all, some, 5000 }, { all, all, 6000 } };
    for (int i = 0; i < 3; i++) {
        struct ibv_sge sge = { (uintptr_t)pages, 5, writes[i].from->lkey };
        struct ibv_send_wr write = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
        write.opcode = IBV_WR_RDMA_WRITE;
        write.send_flags = IBV_SEND_SIGNALED;
        write.wr.rdma.remote_addr = (uintptr_t)pages + writes[i].at;
        write.wr.rdma.rkey = writes[i].to->rkey;
        CHECK(!ibv_post_send(end->qp, &write, &bad));
        struct ibv_wc wc = complete(end);
        CHECK(wc.wr_id == (uint64_t)i && wc.status == IBV_WC_SUCCESS);
        CHECK(!strcmp(pages + writes[i].at, "late"));
    }
    CHECK(!ibv_dereg_mr(some) && !ibv_dereg_mr(all) && !munmap(pages, 8192));
    destroy(end);
    free(end);
}

int main(void)
{
    struct ibv_context *context = open_nth(0);
    struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
    struct ibv_buf *buf;
    struct ibv_mr *mr;
    uint64_t speed = 0;
    CHECK(pd && other);
    on_demand(context);

    CHECK(!ibv_alloc_buf(pd, 0, &buf) && errno == EINVAL);
    char *bytes = ibv_alloc_buf(pd, 10000, &buf);
    CHECK(bytes && (uintptr_t)bytes % 4096 == 0);
    memset(bytes, 1, 10000);
    CHECK((mr = ibv_reg_buf_mr(pd, buf, bytes + 5000, 5000, IBV_ACCESS_LOCAL_WRITE)));
    CHECK(mr->addr == bytes + 5000 && mr->length == 5000 && !ibv_dereg_mr(mr));
    CHECK(!ibv_reg_buf_mr(pd, buf, bytes + 5000, 5001, 0) && errno == EINVAL);
    CHECK(!ibv_reg_buf_mr(pd, buf, bytes - 1, 2, 0) && errno == EINVAL);
    CHECK(!ibv_reg_buf_mr(other, buf, bytes, 1, 0) && errno == EINVAL);

    /* A processor that this thread may not use, three bits of a hint, a kind of memory. */
    struct dmah_attr hints = { .comp_mask = DMAH_CPU, .cpu_id = 0xffff };
    CHECK(!ibv_alloc_dmah(context, &hints) && errno == EPERM);
    hints = (struct dmah_attr){ .comp_mask = DMAH_PH, .ph = 4 };
    CHECK(!ibv_alloc_dmah(context, &hints) && errno == EINVAL);
    hints = (struct dmah_attr){ .comp_mask = DMAH_MEM_TYPE, .tph_mem_type = 2 };
    CHECK(!ibv_alloc_dmah(context, &hints) && errno == EINVAL);
    hints = (struct dmah_attr){ DMAH_CPU | DMAH_PH | DMAH_MEM_TYPE, sched_getcpu(), 3, 1 };
    struct ibv_dmah *dmah = ibv_alloc_dmah(context, &hints);
    CHECK(dmah);
    struct mr_attr attr = { .length = 10000, .addr = bytes, .dmah = dmah, .buf = buf };
    attr.comp_mask = MR_ADDR | MR_DMAH | MR_BUF;
    CHECK((mr = ibv_reg_mr_ex(pd, &attr)) && !ibv_dereg_mr(mr));
    attr.access = IBV_ACCESS_ON_DEMAND;
    CHECK(!ibv_reg_mr_ex(pd, &attr) && errno == EOPNOTSUPP);
    CHECK(!ibv_dealloc_dmah(dmah));
    hints.comp_mask = 1 << 7;
    CHECK(!ibv_alloc_dmah(context, &hints) && errno == EOPNOTSUPP);
    ibv_free_buf(buf);
    CHECK(msync(bytes, 4096, MS_ASYNC) == -1 && errno == ENOMEM);

    CHECK(!ibv_query_port_speed(context, 1, &speed) && speed > 0);
    CHECK(ibv_query_port_speed(context, 2, &speed) == EINVAL);
    CHECK(!ibv_dealloc_pd(other) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    return 0;
}
