/* Connections of a process with itself: what fields and events say, and what is refused. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include "common.h"

static struct sockaddr_in address(int port)
{
    struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(port) };
    CHECK(inet_pton(AF_INET, "127.122.0.7", &sin.sin_addr) == 1);
    return sin;
}

/* Takes an event, which must be of this kind; the caller acknowledges it. */
static struct rdma_cm_event *take(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
    struct rdma_cm_event *event;
    CHECK(!rdma_get_cm_event(channel, &event));
    if (event->event != kind)
        fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(kind));
    CHECK(event->event == kind);
    return event;
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
    CHECK(!rdma_ack_cm_event(take(channel, kind)));
}

static struct rdma_cm_id *listener(struct rdma_event_channel *channel, void *context)
{
    struct rdma_cm_id *id;
    struct sockaddr_in sin = address(0);
    CHECK(!rdma_create_id(channel, &id, context, RDMA_PS_TCP));
    CHECK(id->channel == channel && id->context == context && id->qp_type == IBV_QPT_RC);
    CHECK(!id->verbs && !rdma_bind_addr(id, (struct sockaddr *)&sin));
    CHECK(id->verbs && id->pd && id->port_num == 1 && rdma_get_src_port(id));
    CHECK(!rdma_listen(id, 4));
    return id;
}

/* Invalid names, options and addresses, and a port that is in use. */
static void refused(struct rdma_event_channel *channel, struct rdma_cm_id *listening)
{
    struct rdma_cm_id *id;
    struct sockaddr_in taken = address(ntohs(rdma_get_src_port(listening)));
    struct sockaddr nowhere = { .sa_family = AF_UNIX };
    char byte = 8;
    CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    CHECK(rdma_bind_addr(id, &nowhere) == -1 && errno == EINVAL);
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&taken) == -1 && errno == EADDRINUSE);
    CHECK(rdma_connect(id, NULL) == -1 && errno == EINVAL);
    CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);
    CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1));
    CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 2) == -1);
    CHECK(errno == EINVAL && rdma_set_option(id, RDMA_OPTION_ID, 99, &byte, 1) == -1);
    CHECK(errno == ENOSYS && rdma_get_request(id, &id) == -1 && errno == EINVAL);
    CHECK(!rdma_destroy_id(id));
    CHECK(!strcmp(rdma_event_str(RDMA_CM_EVENT_TIMEWAIT_EXIT), "RDMA_CM_EVENT_TIMEWAIT_EXIT"));
}

/* Addresses of InfiniBand on Ethernet, as Linux has them: they lead to a port, and no further. */
static void native(struct rdma_event_channel *channel)
{
    struct rdma_cm_id *id;
    struct sockaddr_in ip = address(0);
    struct sockaddr_ib own = { .sib_family = AF_IB, .sib_pkey = 0xffff };
    ib_addr_set(&own.sib_addr, 0, 0, htonl(0xffff), ip.sin_addr.s_addr);
    own.sib_sid = htobe64(0x01110000 + 7), own.sib_sid_mask = ~0ULL;
    CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&own) == -1 && errno == EPROTONOSUPPORT);
    own.sib_sid = htobe64(0x01060000 + 7);
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&own) == -1 && errno == ENODEV);
    CHECK(rdma_resolve_addr(id, (struct sockaddr *)&ip, (struct sockaddr *)&own, 9) == -1);
    CHECK(errno == EINVAL && !rdma_resolve_addr(id, NULL, (struct sockaddr *)&own, 1000));
    expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(id->verbs && id->route.addr.src_addr.sa_family == AF_IB && rdma_get_src_port(id));
    CHECK(!memcmp(&id->route.addr.dst_addr, &own, sizeof own) && rdma_get_dst_port(id) == htons(7));
    CHECK(rdma_resolve_route(id, 1000) == -1 && errno == ENODEV);
    CHECK(!rdma_destroy_id(id) && !rdma_create_id(channel, &id, NULL, RDMA_PS_IPOIB));
    CHECK(id->qp_type == IBV_QPT_UD);
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&ip) == -1 && errno == EINVAL);
    CHECK(!rdma_destroy_id(id));
}

/* The channel is empty, and a non-blocking call does not wait. */
static void not_waiting(struct rdma_event_channel *channel)
{
    struct rdma_cm_event *event;
    struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
    CHECK(poll(&readable, 1, 0) == 0);
    CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
    CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
    CHECK(!fcntl(channel->fd, F_SETFL, 0));
}

/* An id with the queues that it makes itself, which knows the way. */
static struct rdma_cm_id *client(struct rdma_event_channel *channel, int port)
{
    struct rdma_cm_id *id;
    struct sockaddr_in to = address(port);
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
    CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000));
    expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(id->verbs && !rdma_resolve_route(id, 1000));
    expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    CHECK(id->route.num_paths == 1 && id->route.path_rec->pkey == 0xffff);
    CHECK(!rdma_create_qp(id, NULL, &init));
    CHECK(id->qp && id->send_cq == init.send_cq && id->recv_cq_channel && id->qp->pd == id->pd);
    CHECK(id->qp->state == IBV_QPS_INIT && init.cap.max_inline_data >= 16);
    return id;
}

/* The id of the next request, which must say hello. */
static struct rdma_cm_id *asked(struct rdma_cm_id *listening)
{
    struct rdma_cm_event *event = take(listening->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *id = event->id;
    CHECK(event->listen_id == listening && id != listening);
    CHECK(id->context == listening->context && id->verbs == listening->verbs);
    CHECK(event->param.conn.private_data_len >= 6);
    CHECK(!memcmp(event->param.conn.private_data, "hello", 6));
    CHECK(rdma_get_src_port(id) == rdma_get_src_port(listening) && rdma_get_dst_port(id));
    CHECK(!rdma_ack_cm_event(event));
    return id;
}

static void *destroy_id(void *id)
{
    CHECK(!rdma_destroy_id(id));
    return NULL;
}

static void connected(struct rdma_cm_id *listening, struct rdma_event_channel *channel)
{
    struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 6 };
    struct rdma_cm_id *here = client(channel, ntohs(rdma_get_src_port(listening)));
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
    param.retry_count = param.rnr_retry_count = 7;
    CHECK(!rdma_connect(here, &param));
    struct rdma_cm_id *there = asked(listening);
    CHECK(!rdma_create_qp(there, NULL, &init) && !rdma_accept(there, NULL));
    expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    expect(listening->channel, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(here->qp->state == IBV_QPS_RTS && there->qp->state == IBV_QPS_RTS);
    CHECK(rdma_get_src_port(here) == rdma_get_dst_port(there));
    CHECK(!rdma_disconnect(here) && here->qp->state == IBV_QPS_ERR);
    expect(channel, RDMA_CM_EVENT_DISCONNECTED);
    /* An id stays until its last event is acknowledged. */
    struct rdma_cm_event *last = take(listening->channel, RDMA_CM_EVENT_DISCONNECTED);
    pthread_t waits;
    rdma_destroy_qp(there);
    CHECK(!there->qp && !there->send_cq && !there->recv_cq_channel);
    CHECK(!pthread_create(&waits, NULL, destroy_id, there));
    usleep(10000);
    CHECK(pthread_tryjoin_np(waits, NULL) == EBUSY);
    CHECK(!rdma_ack_cm_event(last) && !pthread_join(waits, NULL));
    rdma_destroy_ep(here);
}

static void rejected(struct rdma_cm_id *listening, struct rdma_event_channel *channel)
{
    struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 6 };
    struct rdma_cm_id *here = client(channel, ntohs(rdma_get_src_port(listening)));
    CHECK(!rdma_connect(here, &param));
    struct rdma_cm_id *there = asked(listening);
    CHECK(!rdma_reject(there, "no", 3) && !rdma_destroy_id(there));
    struct rdma_cm_event *event = take(channel, RDMA_CM_EVENT_REJECTED);
    /* The consumer said so. */
    CHECK(event->status == 28 && !memcmp(event->param.conn.private_data, "no", 3));
    CHECK(!rdma_ack_cm_event(event));
    rdma_destroy_ep(here);
}

/* Queues that a program gives to an id are the id's, also if there is one of each for both. */
static void given_queues(struct rdma_event_channel *channel)
{
    struct rdma_cm_id *id;
    struct sockaddr_in sin = address(0);
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
    CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    CHECK(!rdma_bind_addr(id, (struct sockaddr *)&sin));
    CHECK((id->send_cq_channel = id->recv_cq_channel = ibv_create_comp_channel(id->verbs)));
    id->send_cq = id->recv_cq = ibv_create_cq(id->verbs, 2, id, id->recv_cq_channel, 0);
    CHECK(id->send_cq && !rdma_create_qp(id, NULL, &init) && id->qp->send_cq == id->send_cq);
    rdma_destroy_qp(id);
    CHECK(!id->qp && !id->send_cq && !id->recv_cq && !id->send_cq_channel);
    CHECK(!rdma_destroy_id(id));
}

/* Of rdma-core 65. */
enum { ADDRINFO_RESOLVED = 16, USER = 18 };
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
                        uint64_t arg);
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
                          const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);

static void own_events(struct rdma_event_channel *channel)
{
    struct rdma_cm_id *id;
    struct rdma_addrinfo *found;
    CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    CHECK(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0) == -1 && errno == EINVAL);
    CHECK(!rdma_write_cm_event(id, USER, -7, 0x123456789abcdef));
    struct rdma_cm_event *event = take(channel, USER);
    CHECK(event->id == id && event->status == -7);
    /* The number is where the parameters are. */
    CHECK(*(uint64_t *)&event->param == 0x123456789abcdef && !rdma_ack_cm_event(event));
    CHECK(rdma_query_addrinfo(id, &found) == -1 && errno == ENOENT);
    CHECK(!rdma_resolve_addrinfo(id, "127.122.0.7", "7471", NULL));
    CHECK(rdma_resolve_addrinfo(id, "127.122.0.7", "7471", NULL) == -1 && errno == EBUSY);
    expect(channel, ADDRINFO_RESOLVED);
    CHECK(!rdma_query_addrinfo(id, &found) && found->ai_dst_len);
    rdma_freeaddrinfo(found);
    CHECK(!rdma_resolve_addrinfo(id, "127.122.0.7", "7471", NULL) && !rdma_destroy_id(id));
}

static void names(void)
{
    struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *found;
    CHECK(rdma_getaddrinfo(NULL, NULL, NULL, &found) == -1 && errno == EINVAL);
    CHECK(!rdma_getaddrinfo(NULL, "7471", &hints, &found));
    CHECK(found->ai_flags == RAI_PASSIVE && found->ai_src_len && !found->ai_dst_len);
    CHECK(found->ai_qp_type == IBV_QPT_RC && found->ai_port_space == RDMA_PS_TCP);
    rdma_freeaddrinfo(found);
    CHECK(!rdma_getaddrinfo("127.122.0.7", "7471", NULL, &found));
    CHECK(((struct sockaddr_in *)found->ai_dst_addr)->sin_port == htons(7471));
    rdma_freeaddrinfo(found);
}

/* A thread may ask for the next event just when another has destroyed the channel. */
static void too_late(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_event *event;
    CHECK(channel);
    rdma_destroy_event_channel(channel);
    /* Its memory may have become something else. */
    for (size_t len = 8; len <= 512; len += 8) {
        void *other = malloc(len);
        CHECK(other);
        memset(other, 0xa5, len);
    }
    CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EBADF);
}

/* Answers one request. */
static void *serve(void *listening)
{
    struct rdma_cm_id *id;
    CHECK(!rdma_get_request(listening, &id) && id->qp && id->qp_type == IBV_QPT_UD);
    CHECK(!rdma_accept(id, NULL));
    return id;
}

/* Datagrams of the port space that is for connections, too. */
static void datagrams_of_infiniband(void)
{
    struct rdma_addrinfo *info, hints = { .ai_flags = RAI_PASSIVE | RAI_NUMERICHOST,
                                          .ai_port_space = RDMA_PS_IB,
                                          .ai_qp_type = IBV_QPT_UD };
    struct ibv_qp_init_attr init = {
        .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
        .qp_type = IBV_QPT_UD,
    };
    struct rdma_cm_id *listening, *id, *there;
    char port[8];
    pthread_t thread;
    CHECK(!rdma_getaddrinfo("127.122.0.7", "0", &hints, &info));
    struct ibv_qp_init_attr of_requests = init;
    CHECK(!rdma_create_ep(&listening, info, NULL, &of_requests));
    CHECK(listening->ps == RDMA_PS_IB && listening->qp_type == IBV_QPT_UD);
    CHECK(!rdma_listen(listening, 1));
    rdma_freeaddrinfo(info);
    CHECK(snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listening))) > 0);
    hints.ai_flags = RAI_NUMERICHOST;
    CHECK(!rdma_getaddrinfo("127.122.0.7", port, &hints, &info));
    CHECK(!rdma_create_ep(&id, info, NULL, &init) && id->qp && id->qp_type == IBV_QPT_UD);
    rdma_freeaddrinfo(info);
    CHECK(!pthread_create(&thread, NULL, serve, listening));
    CHECK(!rdma_connect(id, NULL) && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
    CHECK(!pthread_join(thread, (void **)&there));
    CHECK(id->event->param.ud.qp_num == there->qp->qp_num);
    rdma_destroy_ep(there);
    rdma_destroy_ep(id);
    rdma_destroy_ep(listening);
}

int main(void)
{
    int count, context = 0;
    struct ibv_context **devices = rdma_get_devices(&count);
    CHECK(devices && count == 1 && devices[0] && !devices[1]);
    struct rdma_event_channel *ours = rdma_create_event_channel();
    struct rdma_event_channel *theirs = rdma_create_event_channel();
    CHECK(ours && theirs);
    struct rdma_cm_id *listening = listener(theirs, &context);
    CHECK(listening->verbs == devices[0]);
    rdma_free_devices(devices);
    refused(ours, listening);
    native(ours);
    not_waiting(ours);
    connected(listening, ours);
    rejected(listening, ours);
    given_queues(ours);
    datagrams_of_infiniband();
    own_events(ours);
    names();
    CHECK(!rdma_destroy_id(listening));
    rdma_destroy_event_channel(ours);
    rdma_destroy_event_channel(theirs);
    too_late();
    return 0;
}
