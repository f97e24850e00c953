/* A library that makes objects when it is loaded, for a tool that shows those of its process. The
 * environment says how many memory regions there are besides. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include "common.h"

__attribute__((constructor)) static void make_all(void)
{
    static struct end end;
    make(&end, open_nth(0));
    connect_self(&end);
    say(&end, "text");
    struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
    CHECK(ibv_create_srq(end.pd, &srq));
    struct ibv_qp_init_attr ud = { .send_cq = end.cq, .recv_cq = end.cq, .qp_type = IBV_QPT_UD };
    ud.cap = (struct ibv_qp_cap){ 1, 1, 1, 1, 0 };
    CHECK(ibv_create_qp(end.pd, &ud));

    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id;
    struct sockaddr_in any = { .sin_family = AF_INET };
    union ibv_gid gid;
    CHECK(!ibv_query_gid(end.context, 1, 0, &gid));
    memcpy(&any.sin_addr, gid.raw + 12, 4);
    CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    CHECK(!rdma_bind_addr(id, (struct sockaddr *)&any) && !rdma_listen(id, 1));

    const char *more = getenv("MORE");
    for (int i = 0; more && i < atoi(more); i++)
        CHECK(ibv_reg_mr(end.pd, end.buffer, 1 + i, IBV_ACCESS_LOCAL_WRITE));
}
