/* Calls of librdmacm that programs make early, late, twice or with too much, and what Linux says. */
#define _GNU_SOURCE
#include <poll.h>

#include "cm.h"

#define HERE "127.122.0.10"

static struct rdma_event_channel *ours, *theirs;

static struct rdma_cm_id *made(struct rdma_event_channel *channel, enum rdma_port_space ps)
{
    struct rdma_cm_id *id;
    CHECK(!rdma_create_id(channel, &id, NULL, ps));
    return id;
}

static struct rdma_cm_id *bound(struct rdma_event_channel *channel, enum rdma_port_space ps)
{
    struct rdma_cm_id *id = made(channel, ps);
    struct sockaddr_in sin = at(HERE, 0);
    CHECK(!rdma_bind_addr(id, (struct sockaddr *)&sin));
    return id;
}

static struct rdma_cm_id *listener(enum rdma_port_space ps, int backlog)
{
    struct rdma_cm_id *id = bound(theirs, ps);
    CHECK(!rdma_listen(id, backlog));
    return id;
}

/* An id that knows the way to a listener. */
static struct rdma_cm_id *client(struct rdma_cm_id *listening)
{
    struct rdma_cm_id *id = made(ours, listening->ps);
    struct sockaddr_in from = at(HERE, 0), to = at(HERE, ntohs(rdma_get_src_port(listening)));
    CHECK(!rdma_resolve_addr(id, (struct sockaddr *)&from, (struct sockaddr *)&to, 1000));
    expect(ours, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(!rdma_resolve_route(id, 1000));
    expect(ours, RDMA_CM_EVENT_ROUTE_RESOLVED);
    return id;
}

static struct rdma_cm_id *asked(void)
{
    struct rdma_cm_event *event = take(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *id = event->id;
    CHECK(!rdma_ack_cm_event(event));
    return id;
}

static void give_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 0 } };
    init.qp_type = id->qp_type;
    CHECK(!rdma_create_qp(id, NULL, &init));
}

/* Makes a queue pair without the help of the id. */
static struct ibv_qp *own_qp(struct rdma_cm_id *id, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 } };
    init.qp_type = IBV_QPT_RC;
    struct ibv_qp *qp = ibv_create_qp(id->pd, &init);
    CHECK(qp);
    return qp;
}

static int option(struct rdma_cm_id *id, int name, int value)
{
    return rdma_set_option(id, RDMA_OPTION_ID, name, &value, sizeof value) ? errno : 0;
}

static void names_and_options(void)
{
    struct rdma_cm_id *id, *second;
    struct sockaddr_in foreign = at("192.0.2.1", 0), to = at(HERE, 7471);
    CHECK(rdma_create_id(ours, &id, NULL, 0x1234) == -1 && errno == EINVAL);
    id = made(ours, RDMA_PS_TCP);
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&foreign) == -1 && errno == EADDRNOTAVAIL);
    CHECK(rdma_resolve_addr(id, (struct sockaddr *)&foreign, (struct sockaddr *)&to, 1000) == -1);
    CHECK(errno == EADDRNOTAVAIL);
    CHECK(!rdma_destroy_id(id));

    /* Until it listens, an id may begin to share its address. */
    id = bound(ours, RDMA_PS_TCP);
    second = made(ours, RDMA_PS_TCP);
    struct sockaddr_in same = at(HERE, ntohs(rdma_get_src_port(id)));
    CHECK(!option(second, RDMA_OPTION_ID_REUSEADDR, 1));
    CHECK(rdma_bind_addr(second, (struct sockaddr *)&same) == -1 && errno == EADDRINUSE);
    CHECK(!option(id, RDMA_OPTION_ID_REUSEADDR, 1));
    CHECK(option(id, RDMA_OPTION_ID_REUSEADDR, 0) == EINVAL);
    CHECK(!rdma_bind_addr(second, (struct sockaddr *)&same));
    CHECK(!option(id, RDMA_OPTION_ID_AFONLY, 1) && !option(id, RDMA_OPTION_ID_AFONLY, 0));
    CHECK(!rdma_destroy_id(second) && !rdma_listen(id, 1));
    CHECK(option(id, RDMA_OPTION_ID_AFONLY, 1) == EINVAL);
    CHECK(option(id, RDMA_OPTION_ID_REUSEADDR, 1) == EINVAL);
    CHECK(!rdma_destroy_id(id));
}

/* A client whose request cannot be accepted with these parameters is told so. */
static void accepted_with_too_much(enum rdma_port_space ps)
{
    static const char much[255];
    struct rdma_conn_param param = { .private_data = much };
    struct rdma_cm_id *listening = listener(ps, 1), *here = client(listening);
    give_qp(here);
    CHECK(!rdma_connect(here, &param));
    struct rdma_cm_id *there = asked();
    give_qp(there);
    param.private_data_len = sizeof much;
    CHECK(rdma_accept(there, &param) == -1 && errno == EINVAL);
    CHECK(ps == RDMA_PS_UDP || there->qp->state == IBV_QPS_ERR);
    if (ps == RDMA_PS_UDP)
        CHECK(expect(ours, RDMA_CM_EVENT_UNREACHABLE) != 0);
    else
        CHECK(expect(ours, RDMA_CM_EVENT_REJECTED) == 28);
    rdma_destroy_ep(here);
    rdma_destroy_ep(there);
    CHECK(!rdma_destroy_id(listening));
}

/* A request that finds the backlog full comes again. */
static void beyond_the_backlog(void)
{
    struct rdma_conn_param param = { .private_data = "" };
    struct rdma_cm_id *listening = listener(RDMA_PS_TCP, 1), *here[2], *there[2];
    struct pollfd requests = { theirs->fd, POLLIN, 0 }, answers = { ours->fd, POLLIN, 0 };
    for (int i = 0; i < 2; i++) {
        here[i] = client(listening);
        give_qp(here[i]);
        CHECK(!rdma_connect(here[i], &param));
        CHECK(poll(&requests, 1, -1) == 1);
    }
    /* The second one is not refused meanwhile. */
    CHECK(poll(&answers, 1, 50) == 0);
    for (int i = 0; i < 2; i++) {
        there[i] = asked();
        give_qp(there[i]);
        CHECK(!rdma_accept(there[i], NULL));
        expect(theirs, RDMA_CM_EVENT_ESTABLISHED);
        expect(ours, RDMA_CM_EVENT_ESTABLISHED);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(!rdma_disconnect(here[i]));
        expect(theirs, RDMA_CM_EVENT_DISCONNECTED);
        expect(ours, RDMA_CM_EVENT_DISCONNECTED);
        rdma_destroy_ep(here[i]);
        rdma_destroy_ep(there[i]);
    }
    CHECK(!rdma_destroy_id(listening));
}

/* There is nothing to end, which is no error. */
static void datagrams_end(void)
{
    struct rdma_conn_param param = { .private_data = "" };
    struct rdma_cm_id *listening = listener(RDMA_PS_UDP, 1), *here = client(listening);
    CHECK(rdma_disconnect(here) == -1 && errno == EINVAL);
    give_qp(here);
    CHECK(!rdma_connect(here, &param));
    struct rdma_cm_id *there = asked();
    give_qp(there);
    CHECK(!rdma_accept(there, &param));
    expect(ours, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(!rdma_disconnect(here) && !rdma_disconnect(there));
    rdma_destroy_ep(here);
    rdma_destroy_ep(there);
    CHECK(!rdma_destroy_id(listening));
}

/* Data says that the peer is ready before the peer does, but only once. */
static void notified_twice(void)
{
    struct rdma_conn_param param = { .private_data = "", .qp_num = 0x123456 };
    struct rdma_cm_id *listening = listener(RDMA_PS_TCP, 1), *here = client(listening);
    CHECK(!rdma_connect(here, &param));
    struct rdma_cm_id *there = asked();
    give_qp(there);
    CHECK(rdma_notify(there, IBV_EVENT_COMM_EST) == -1 && errno == EINVAL);
    CHECK(!rdma_accept(there, NULL));
    expect(ours, RDMA_CM_EVENT_CONNECT_RESPONSE);
    CHECK(!rdma_notify(there, IBV_EVENT_COMM_EST));
    expect(theirs, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(rdma_notify(there, IBV_EVENT_COMM_EST) == -1 && errno == EISCONN);
    CHECK(rdma_notify(there, IBV_EVENT_SQ_DRAINED) == -1 && errno == EINVAL);
    CHECK(!rdma_establish(here));
    CHECK(!rdma_destroy_id(here));
    expect(theirs, RDMA_CM_EVENT_DISCONNECTED);
    rdma_destroy_ep(there);
    CHECK(!rdma_destroy_id(listening));
}

/* The queue pair that the program puts into an id is the one of the connection. */
static void queue_pairs_of_the_program(void)
{
    struct rdma_conn_param param = { .private_data = "" };
    struct rdma_cm_id *listening = listener(RDMA_PS_TCP, 1), *here = client(listening);
    struct rdma_cm_id *first = bound(ours, RDMA_PS_TCP);
    param.retry_count = param.rnr_retry_count = 7;
    /* One that was made for another id, which is gone then, */
    give_qp(first);
    struct ibv_cq *cq = first->send_cq, *receives = first->recv_cq;
    struct ibv_comp_channel *channels[2] = { first->send_cq_channel, first->recv_cq_channel };
    here->qp = first->qp;
    first->qp = NULL;
    CHECK(!rdma_connect(here, &param));
    CHECK(!rdma_destroy_id(first));
    struct rdma_cm_id *there = asked();
    /* and one that was made for none. */
    struct ibv_cq *other = ibv_create_cq(there->verbs, 8, NULL, NULL, 0);
    CHECK(other);
    there->qp = own_qp(there, other);
    CHECK(!rdma_accept(there, &param) && there->qp->state == IBV_QPS_RTS);
    expect(ours, RDMA_CM_EVENT_ESTABLISHED);
    expect(theirs, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(here->qp->state == IBV_QPS_RTS);
    struct ibv_recv_wr receive = { .wr_id = 7 }, *bad_receive;
    struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
    struct ibv_wc wc;
    CHECK(!ibv_post_recv(there->qp, &receive, &bad_receive));
    CHECK(!ibv_post_send(here->qp, &send, &bad_send));
    while (!ibv_poll_cq(other, 1, &wc))
        ;
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7);
    CHECK(!rdma_disconnect(there) && there->qp->state == IBV_QPS_ERR);
    expect(ours, RDMA_CM_EVENT_DISCONNECTED);
    expect(theirs, RDMA_CM_EVENT_DISCONNECTED);
    CHECK(!rdma_disconnect(here) && here->qp->state == IBV_QPS_ERR);
    rdma_destroy_qp(here);
    rdma_destroy_qp(there);
    CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_cq(receives) && !ibv_destroy_cq(other));
    CHECK(!ibv_destroy_comp_channel(channels[0]) && !ibv_destroy_comp_channel(channels[1]));
    CHECK(!rdma_destroy_id(here) && !rdma_destroy_id(there) && !rdma_destroy_id(listening));
}

int main(void)
{
    CHECK((ours = rdma_create_event_channel()) && (theirs = rdma_create_event_channel()));
    names_and_options();
    accepted_with_too_much(RDMA_PS_TCP);
    accepted_with_too_much(RDMA_PS_UDP);
    beyond_the_backlog();
    datagrams_end();
    notified_twice();
    queue_pairs_of_the_program();
    rdma_destroy_event_channel(ours);
    rdma_destroy_event_channel(theirs);
    return 0;
}
