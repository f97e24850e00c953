/* What the examples share: checks, and the four steps that make two queue pairs talk. */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Ends the program if something fails, and says what. */
#define CHECK(condition)                                                               \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,         \
                    strerror(errno));                                                  \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* Which address of the device to use. `show_gids` or `ibv_devinfo -v` lists them; on a RoCE adapter
 * take one of type RoCE v2. */
#define GID_INDEX 0

/* What a peer has to know of a queue pair, and of the memory that it may use. */
struct place {
    union ibv_gid gid;
    uint32_t qpn, psn, rkey;
    uint64_t addr;
};

/* One end of a connection. */
struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_qp *qp;
    struct place place;
};

static inline struct ibv_context *open_first(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list);
    if (count == 0) {
        fprintf(stderr, "there is no RDMA device: run this with `feroce run -- PROGRAM`\n");
        exit(1);
    }
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    return context;
}

/* The address of the first device. */
static inline void own_address(char text[INET6_ADDRSTRLEN])
{
    union ibv_gid gid;
    struct ibv_context *context = open_first();
    CHECK(!ibv_query_gid(context, 1, GID_INDEX, &gid));
    /* The GID of a RoCE device is its IP address; one of IPv4 stands in the last four bytes. */
    int v4 = IN6_IS_ADDR_V4MAPPED((struct in6_addr *)gid.raw);
    CHECK(inet_ntop(v4 ? AF_INET : AF_INET6, gid.raw + (v4 ? 12 : 0), text, INET6_ADDRSTRLEN));
    CHECK(!ibv_close_device(context));
}

/* Makes an end whose memory peers may use as `access` says. */
static inline struct end make_end(struct ibv_context *context, void *memory, size_t length,
                                  int access)
{
    struct end end = { .context = context };
    CHECK((end.pd = ibv_alloc_pd(context)));
    CHECK((end.cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
    CHECK((end.mr = ibv_reg_mr(end.pd, memory, length, access)));
    struct ibv_qp_init_attr init = {
        .send_cq = end.cq,
        .recv_cq = end.cq,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    CHECK((end.qp = ibv_create_qp(end.pd, &init)));
    end.place.qpn = end.qp->qp_num;
    end.place.psn = lrand48() & 0xffffff;
    end.place.addr = (uintptr_t)memory;
    end.place.rkey = end.mr->rkey;
    CHECK(!ibv_query_gid(context, 1, GID_INDEX, &end.place.gid));
    return end;
}

/* RESET to INIT, to RTR (ready to receive), to RTS (ready to send). */
static inline void connect_end(struct end *end, const struct place *peer)
{
    struct ibv_port_attr port;
    CHECK(!ibv_query_port(end->context, 1, &port));

    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags =
            IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    CHECK(!ibv_modify_qp(end->qp, &init,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));

    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = port.active_mtu,
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 12,
        /* On Ethernet every packet is routed by its global header. */
        .ah_attr = { .is_global = 1,
                     .port_num = 1,
                     .grh = { .dgid = peer->gid, .sgid_index = GID_INDEX, .hop_limit = 64 } },
    };
    CHECK(!ibv_modify_qp(end->qp, &rtr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));

    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = end->place.psn,
        .max_rd_atomic = 4,
        /* 4.096 us * 2^14 = 67 ms for each try; 7 tries. A receiver that is not ready may take as
         * long as it needs to: here 7 is for ever. */
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
    };
    CHECK(!ibv_modify_qp(end->qp, &rts,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
                             IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY));
}

/* Waits for one completion. */
static inline struct ibv_wc wait_one(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int count;
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    CHECK(count == 1);
    return wc;
}

static inline void expect_success(struct ibv_wc wc)
{
    if (wc.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "request %lu: %s (%d)\n", (unsigned long)wc.wr_id,
                ibv_wc_status_str(wc.status), wc.status);
        exit(1);
    }
}

static inline void destroy_end(struct end *end)
{
    CHECK(!ibv_destroy_qp(end->qp));
    CHECK(!ibv_dereg_mr(end->mr));
    CHECK(!ibv_destroy_cq(end->cq));
    CHECK(!ibv_dealloc_pd(end->pd));
}

/* Sends something to the other process, and receives the same from it. Between two machines this
 * would be a TCP socket. */
static inline void exchange(int socket, const void *mine, void *theirs, size_t length)
{
    CHECK(send(socket, mine, length, MSG_NOSIGNAL) == (ssize_t)length);
    CHECK(recv(socket, theirs, length, MSG_WAITALL) == (ssize_t)length);
}

/* Waits until both processes are here. */
static inline void meet(int socket)
{
    char here = 1, there;
    exchange(socket, &here, &there, 1);
}

/* Splits into two processes, joined by a socket, before any of them uses RDMA. Returns the socket;
 * `child` is 0 in the new one. */
static inline int split(pid_t *child)
{
    int sockets[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    CHECK((*child = fork()) >= 0);
    srand48(getpid());
    close(sockets[*child == 0]);
    return sockets[*child != 0];
}

/* Whether a child ended well. */
static inline void expect_end(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "the other process failed\n");
        exit(1);
    }
}
