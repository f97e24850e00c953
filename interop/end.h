/*
 * What programs of two ends have in common: how they meet, and how a queue pair of each is
 * connected to that of the other.
 */
#ifndef END_H
#define END_H

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "must.h"

/* An emulated machine answers late: about a second. */
enum { TIMEOUT = 18 };

/* One more would be the largest number, which Soft-RoCE takes for "without end". */
enum { RETRIES = 6 };

/* What the other end must know. */
struct address {
    union ibv_gid gid;
    uint64_t memory;
    uint32_t qpn, psn, rkey, locked_rkey, reads;
};

struct end {
    int is_client, tcp;
    unsigned gid_index, mtu;
    /* Reads and atomics that may be under way. */
    unsigned reads;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    /* The same memory twice: for everybody, and for this end alone. */
    struct ibv_mr *mr, *locked;
    uint8_t *memory;
    struct address here, there;
};

/* ---- the two ends, over TCP ---- */

static int meet(const char *server, int port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    int one = 1, tcp = socket(AF_INET, SOCK_STREAM, 0);
    if (server) {
        must(inet_pton(AF_INET, server, &address.sin_addr) == 1, "inet_pton");
        must(!connect(tcp, (void *)&address, sizeof address), "connect");
        return tcp;
    }
    setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    must(!bind(tcp, (void *)&address, sizeof address), "bind");
    must(!listen(tcp, 1), "listen");
    return accept(tcp, NULL, NULL);
}

static void swap(struct end *end, const void *out, void *in, size_t len)
{
    must(write(end->tcp, out, len) == (ssize_t)len, "write");
    must(recv(end->tcp, in, len, MSG_WAITALL) == (ssize_t)len, "recv");
}

/* Both ends have come so far. */
static void together(struct end *end)
{
    char in, out = 0;
    swap(end, &out, &in, 1);
}

/* ---- verbs ---- */

/* Opens a device and registers memory. */
static void open_device(struct end *end, const char *name, size_t len)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (int i = 0; i < count; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            end->context = ibv_open_device(list[i]);
    must(end->context != NULL, "opening the device");
    end->pd = ibv_alloc_pd(end->context);
    end->cq = ibv_create_cq(end->context, 512, NULL, NULL, 0);
    must(end->pd && end->cq, "a domain and a queue");
    end->memory = aligned_alloc(4096, (len + 4095) / 4096 * 4096);
    must(end->memory != NULL, "memory");
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                 IBV_ACCESS_REMOTE_ATOMIC;
    end->mr = ibv_reg_mr(end->pd, end->memory, len, access);
    end->locked = ibv_reg_mr(end->pd, end->memory, len, IBV_ACCESS_LOCAL_WRITE);
    must(end->mr && end->locked, "ibv_reg_mr");
}

static inline void make_qp(struct end *end)
{
    struct ibv_qp_init_attr init = {
        .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 3, .max_recv_sge = 1 },
    };
    end->qp = ibv_create_qp(end->pd, &init);
    must(end->qp != NULL, "ibv_create_qp");
}

static inline enum ibv_mtu path_mtu(unsigned bytes)
{
    int code = IBV_MTU_256;
    while (128u << code < bytes)
        code++;
    return code;
}

/* `at` is what the other end may use of our memory. */
static inline void connect_qp(struct end *end, const uint8_t *at, int timeout)
{
    end->here = (struct address) { .memory = (uintptr_t)at,
        .qpn = end->qp->qp_num, .psn = getpid() & 0xffffff, .rkey = end->mr->rkey,
        .locked_rkey = end->locked->rkey, .reads = end->reads };
    must(!ibv_query_gid(end->context, 1, end->gid_index, &end->here.gid), "ibv_query_gid");
    swap(end, &end->here, &end->there, sizeof end->here);
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags =
            IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    must(!ibv_modify_qp(end->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                        IBV_QP_ACCESS_FLAGS), "INIT");
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR, .dest_qp_num = end->there.qpn, .rq_psn = end->there.psn,
        .path_mtu = path_mtu(end->mtu), .max_dest_rd_atomic = end->there.reads,
        .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1,
            .grh = { .dgid = end->there.gid, .sgid_index = end->gid_index, .hop_limit = 64 } },
    };
    must(!ibv_modify_qp(end->qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                        IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                        IBV_QP_MIN_RNR_TIMER), "RTR");
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .sq_psn = end->here.psn, .timeout = timeout,
        .retry_cnt = RETRIES, .rnr_retry = 3, .max_rd_atomic = end->reads,
    };
    must(!ibv_modify_qp(end->qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
                        IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
    together(end);
}

static struct ibv_wc complete(struct end *end)
{
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(end->cq, 1, &wc)) == 0)
        ;
    must(n == 1, "ibv_poll_cq");
    return wc;
}

/*
 * Reads the command line, opens the device and waits for the other end:
 *
 *     PROGRAM -d DEVICE -g GID_INDEX -p TCP_PORT -m PATH_MTU WORD [SERVER]
 */
static struct end begin(int argc, char **argv, size_t memory, const char **word)
{
    struct end end = { .reads = 1 };
    const char *device = "";
    int option, port = 0;
    while ((option = getopt(argc, argv, "d:g:p:m:")) != -1) {
        switch (option) {
        case 'd': device = optarg; break;
        case 'g': end.gid_index = atoi(optarg); break;
        case 'p': port = atoi(optarg); break;
        case 'm': end.mtu = atoi(optarg); break;
        default: exit(2);
        }
    }
    if (optind >= argc)
        exit(2);
    /* Whoever hangs shall have said where. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    *word = argv[optind];
    const char *server = argv[optind + 1];
    end.is_client = server != NULL;
    open_device(&end, device, memory);
    end.tcp = meet(server, port);
    return end;
}

#endif
