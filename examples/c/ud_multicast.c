/* UD multicast: the connection manager joins a group, and one datagram reaches all its members. */
#include "example.h"

#include <rdma/rdma_cma.h>

enum { DATAGRAMS = 5, LENGTH = 64, GRH = 40 };

/* The next event, which must be of this kind. The caller acknowledges it. */
static struct rdma_cm_event *expect_event(struct rdma_event_channel *channel,
                                          enum rdma_cm_event_type kind)
{
    struct rdma_cm_event *event;
    CHECK(!rdma_get_cm_event(channel, &event));
    if (event->event != kind) {
        fprintf(stderr, "%s (%d) instead of %s\n", rdma_event_str(event->event), event->status,
                rdma_event_str(kind));
        exit(1);
    }
    return event;
}

/* A member of a group: an id, its queue pair, and where datagrams to the group go. */
struct member {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_ah *ah;
    uint32_t qpn, qkey;
    char memory[DATAGRAMS][GRH + LENGTH];
};

static void make_queue_pair(struct member *member)
{
    CHECK((member->cq = ibv_create_cq(member->id->verbs, 16, NULL, NULL, 0)));
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_UD,
        .send_cq = member->cq,
        .recv_cq = member->cq,
        .sq_sig_all = 1,
        .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    CHECK(!rdma_create_qp(member->id, NULL, &init));
    CHECK((member->mr = ibv_reg_mr(member->id->pd, member->memory, sizeof member->memory,
                                   IBV_ACCESS_LOCAL_WRITE)));
}

/* Posts receives. The first 40 bytes of each are for the global route header. */
static void receive(struct member *member)
{
    for (int i = 0; i < DATAGRAMS; i++) {
        struct ibv_sge sge = { (uintptr_t)member->memory[i], GRH + LENGTH, member->mr->lkey };
        struct ibv_recv_wr *bad, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };
        CHECK(!ibv_post_recv(member->id->qp, &wr, &bad));
    }
}

static void join(struct member *member, struct sockaddr_in *group)
{
    CHECK((member->channel = rdma_create_event_channel()));
    CHECK(!rdma_create_id(member->channel, &member->id, NULL, RDMA_PS_UDP));
    /* From the address of the device; without one the routing table would choose. */
    char text[INET6_ADDRSTRLEN];
    struct sockaddr_in own = { .sin_family = AF_INET };
    own_address(text);
    CHECK(inet_pton(AF_INET, text, &own.sin_addr) == 1);
    CHECK(!rdma_resolve_addr(member->id, (struct sockaddr *)&own, (struct sockaddr *)group, 2000));
    rdma_ack_cm_event(expect_event(member->channel, RDMA_CM_EVENT_ADDR_RESOLVED));
    make_queue_pair(member);
    CHECK(!rdma_join_multicast(member->id, (struct sockaddr *)group, NULL));
    struct rdma_cm_event *event = expect_event(member->channel, RDMA_CM_EVENT_MULTICAST_JOIN);
    CHECK((member->ah = ibv_create_ah(member->id->pd, &event->param.ud.ah_attr)));
    member->qpn = event->param.ud.qp_num;
    member->qkey = event->param.ud.qkey;
    rdma_ack_cm_event(event);
}

static void leave(struct member *member, struct sockaddr_in *group)
{
    CHECK(!rdma_leave_multicast(member->id, (struct sockaddr *)group));
    CHECK(!ibv_destroy_ah(member->ah));
    CHECK(!ibv_dereg_mr(member->mr));
    rdma_destroy_qp(member->id);
    CHECK(!ibv_destroy_cq(member->cq));
    CHECK(!rdma_destroy_id(member->id));
    rdma_destroy_event_channel(member->channel);
}

static void speak(struct member *member)
{
    for (int i = 0; i < DATAGRAMS; i++) {
        int length = snprintf(member->memory[0], LENGTH, "datagram %d", i) + 1;
        struct ibv_sge sge = { (uintptr_t)member->memory[0], length, member->mr->lkey };
        struct ibv_send_wr *bad, wr = {
            .wr_id = i,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = IBV_WR_SEND,
            .wr.ud = { member->ah, member->qpn, member->qkey },
        };
        CHECK(!ibv_post_send(member->id->qp, &wr, &bad));
        expect_success(wait_one(member->cq));
    }
}

static void listen_to(struct member *member)
{
    for (int i = 0; i < DATAGRAMS; i++) {
        char expected[LENGTH];
        struct ibv_wc wc = wait_one(member->cq);
        expect_success(wc);
        snprintf(expected, sizeof expected, "datagram %d", i);
        printf("listener: \"%s\" from queue pair %u\n", member->memory[wc.wr_id] + GRH, wc.src_qp);
        CHECK(strcmp(member->memory[wc.wr_id] + GRH, expected) == 0);
    }
}

int main(void)
{
    pid_t child;
    int socket = split(&child);
    static struct member member;
    struct sockaddr_in group = { .sin_family = AF_INET, .sin_addr = { htonl(0xef500605) } };
    join(&member, &group); /* 239.80.6.5 */
    if (child == 0) {
        receive(&member);
        meet(socket);
        listen_to(&member);
        leave(&member, &group);
        return 0;
    }
    meet(socket); /* the listener is ready */
    speak(&member);
    leave(&member, &group);
    expect_end(child);
    return 0;
}
