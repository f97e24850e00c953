/*
 * One end of a connection by address that checks what the programs of the distribution do not: what
 * comes with requests and answers, how a refusal is told, and what is left when a peer dies.
 *
 *     caller -a ADDRESS_OF_SERVER -p PORT SCENARIO [-c]
 *
 * With -c it is the client. An end that sees something that the specification does not allow says
 * what and exits with status 1.
 */
#include <errno.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "must.h"

enum { RESOLVE_MS = 5000, MESSAGE = 64, ACK_TIMEOUT = 17 };

/* The largest number of retries is one less than Soft-RoCE takes for "without end". */
enum { RETRIES = 3 };

/* Reasons of a refusal as the specification numbers them (12.6.7.2). */
enum { INVALID_SERVICE_ID = 8, CONSUMER_DEFINED = 28 };

static struct rdma_event_channel *channel;

static int is_iwarp(struct rdma_cm_id *id)
{
    return id->verbs && id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
}

/* ---- what comes with messages ---- */

enum kind { REQUEST, ANSWER, REFUSAL };

static const char *const TEXTS[] = { "may I?", "you may", "not today" };

/* Bytes that a request, an answer and a refusal carry at most: over InfiniBand, where a request to a
 * port of an IP address is shorter, and to Soft-iWARP, which takes less than its specification. */
static const int MOST[] = { 56, 196, 148 }, MOST_IWARP = 251;

/* Whether messages carry as much as they can. */
static int is_longest;

struct words {
    char text[256];
    int len;
};

static struct words words(struct rdma_cm_id *id, enum kind kind)
{
    struct words words = { .len = strlen(TEXTS[kind]) + 1 };
    if (is_longest) {
        words.len = is_iwarp(id) ? MOST_IWARP : MOST[kind];
        for (int i = 0; i < words.len; i++)
            words.text[i] = 7 * i + kind;
    } else {
        strcpy(words.text, TEXTS[kind]);
    }
    return words;
}

/* ---- events ---- */

static struct rdma_cm_event *next_event(enum rdma_cm_event_type wanted, int status)
{
    struct rdma_cm_event *event;
    must(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
    if (event->event != wanted || event->status != status)
        fail("got %s with status %d and not %s with %d", rdma_event_str(event->event),
             event->status, rdma_event_str(wanted), status);
    return event;
}

static void expect(enum rdma_cm_event_type wanted)
{
    rdma_ack_cm_event(next_event(wanted, 0));
}

/* What comes with a message may be padded with zeros, so only its beginning is ours. */
static void must_carry(struct rdma_cm_event *event, enum kind kind)
{
    const struct rdma_conn_param *param = &event->param.conn;
    struct words wanted = words(event->id, kind);
    if (param->private_data_len < wanted.len
        || memcmp(param->private_data, wanted.text, wanted.len))
        fail("%s carries %d bytes that are not the %d of `%s`", rdma_event_str(event->event),
             param->private_data_len, wanted.len, TEXTS[kind]);
}

/* ---- messages ---- */

static struct ibv_wc complete(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    must(n == 1, "ibv_poll_cq");
    return wc;
}

static void expect_completion(struct ibv_cq *cq, enum ibv_wc_status status)
{
    struct ibv_wc wc = complete(cq);
    if (wc.status != status)
        fail("completed with `%s` and not `%s`", ibv_wc_status_str(wc.status),
             ibv_wc_status_str(status));
}

/* One message, which shows that both queue pairs were brought up with the right numbers. */
static char message[MESSAGE];

static struct ibv_sge whole_message(struct rdma_cm_id *id)
{
    struct ibv_mr *mr = ibv_reg_mr(id->pd, message, MESSAGE, IBV_ACCESS_LOCAL_WRITE);
    must(mr != NULL, "ibv_reg_mr");
    return (struct ibv_sge) { (uintptr_t)message, MESSAGE, mr->lkey };
}

static void say(struct rdma_cm_id *id)
{
    struct ibv_sge sge = whole_message(id);
    struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
    memset(message, 'x', MESSAGE);
    must(!ibv_post_send(id->qp, &wr, &bad), "ibv_post_send");
    expect_completion(id->send_cq, IBV_WC_SUCCESS);
}

/* Before the connection is there, so that nothing comes too early. */
static void get_ready_to_hear(struct rdma_cm_id *id)
{
    struct ibv_sge sge = whole_message(id);
    struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
    must(!ibv_post_recv(id->qp, &wr, &bad), "ibv_post_recv");
}

static void hear(struct rdma_cm_id *id)
{
    expect_completion(id->recv_cq, IBV_WC_SUCCESS);
    must(message[0] == 'x' && message[MESSAGE - 1] == 'x', "receiving what was sent");
}

/* ---- ends ---- */

static struct rdma_conn_param conn_param(const struct words *words)
{
    return (struct rdma_conn_param) { .private_data = words->text, .private_data_len = words->len,
        .responder_resources = 3, .initiator_depth = 2, .retry_count = RETRIES,
        .rnr_retry_count = 5 };
}

static void make_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
    must(!rdma_create_qp(id, NULL, &init), "rdma_create_qp");
}

static struct sockaddr *resolve(const char *host, int port)
{
    static struct addrinfo *found;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    must(!getaddrinfo(host, service, NULL, &found), "getaddrinfo");
    return found->ai_addr;
}

/* An id that may call. */
static struct rdma_cm_id *resolved(const char *host, int port)
{
    struct rdma_cm_id *id;
    uint8_t timeout = ACK_TIMEOUT;
    must(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    must(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout,
                          sizeof timeout), "rdma_set_option");
    must(!rdma_resolve_addr(id, NULL, resolve(host, port), RESOLVE_MS), "rdma_resolve_addr");
    expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    must(!rdma_resolve_route(id, RESOLVE_MS), "rdma_resolve_route");
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_qp(id);
    return id;
}

static int ask(struct rdma_cm_id *id)
{
    struct words request = words(id, REQUEST);
    struct rdma_conn_param param = conn_param(&request);
    return rdma_connect(id, &param) ? errno : 0;
}

/* An id that calls. */
static struct rdma_cm_id *prepare(const char *host, int port)
{
    struct rdma_cm_id *id = resolved(host, port);
    must(!ask(id), "rdma_connect");
    return id;
}

static struct rdma_cm_id *call(const char *host, int port)
{
    struct rdma_cm_id *id = prepare(host, port);
    struct rdma_cm_event *event = next_event(RDMA_CM_EVENT_ESTABLISHED, 0);
    must_carry(event, ANSWER);
    rdma_ack_cm_event(event);
    return id;
}

static struct rdma_cm_id *listen_at(const char *host, int port)
{
    struct rdma_cm_id *id;
    must(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    must(!rdma_bind_addr(id, resolve(host, port)), "rdma_bind_addr");
    must(!rdma_listen(id, 4), "rdma_listen");
    return id;
}

static struct rdma_cm_id *next_request(void)
{
    struct rdma_cm_event *event = next_event(RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    struct rdma_cm_id *id = event->id;
    must_carry(event, REQUEST);
    /* What the peer can answer is what we may ask for, and the other way round. */
    must(event->param.conn.responder_resources == 2, "hearing the depth of the peer");
    must(event->param.conn.initiator_depth == 3, "hearing the resources of the peer");
    if (!is_iwarp(id))
        must(event->param.conn.retry_count == RETRIES, "hearing the retries of the peer");
    rdma_ack_cm_event(event);
    return id;
}

static struct rdma_cm_id *answer(void)
{
    struct rdma_cm_id *id = next_request();
    struct words answer = words(id, ANSWER);
    struct rdma_conn_param param = conn_param(&answer);
    make_qp(id);
    get_ready_to_hear(id);
    must(!rdma_accept(id, &param), "rdma_accept");
    expect(RDMA_CM_EVENT_ESTABLISHED);
    return id;
}

static void destroy(struct rdma_cm_id *id)
{
    rdma_destroy_qp(id);
    must(!rdma_destroy_id(id), "rdma_destroy_id");
}

/* A connection from the first message to the last. */
static void whole(struct rdma_cm_id *id, int is_client)
{
    if (is_client) {
        say(id);
        must(!rdma_disconnect(id), "rdma_disconnect");
    } else {
        hear(id);
    }
    expect(RDMA_CM_EVENT_DISCONNECTED);
    destroy(id);
}

static void expect_refusal(struct rdma_cm_id *id, int reason, int carries)
{
    struct rdma_cm_event *event = next_event(RDMA_CM_EVENT_REJECTED, reason);
    if (carries)
        must_carry(event, REFUSAL);
    rdma_ack_cm_event(event);
    destroy(id);
}

/* ---- scenarios ---- */

/* Requests and answers carry what they were given, then the connection works and ends. */
static void private_data(const char *host, int port, int is_client)
{
    whole(is_client ? call(host, port) : answer(), is_client);
}

/* The server refuses once, with words of its own, and takes the next call. */
static void refused(const char *host, int port, int is_client)
{
    if (is_client) {
        struct rdma_cm_id *id = prepare(host, port);
        expect_refusal(id, is_iwarp(id) ? -ECONNRESET : CONSUMER_DEFINED, 1);
    } else {
        struct rdma_cm_id *id = next_request();
        struct words refusal = words(id, REFUSAL);
        must(!rdma_reject(id, refusal.text, refusal.len), "rdma_reject");
        must(!rdma_destroy_id(id), "rdma_destroy_id");
    }
    private_data(host, port, is_client);
}

/* No server listens at another port of the same address. */
static void no_listener(const char *host, int port, int is_client)
{
    if (is_client) {
        struct rdma_cm_id *id = resolved(host, port + 10000);
        int error = ask(id);
        if (!error) {
            expect_refusal(id, is_iwarp(id) ? -ECONNREFUSED : INVALID_SERVICE_ID, 0);
        } else {
            /* Soft-iWARP connects in the call. */
            must(is_iwarp(id) && error == ECONNREFUSED, "rdma_connect");
            destroy(id);
        }
    }
    private_data(host, port, is_client);
}

/*
 * The server is killed. Where the kernel has its connections, it takes leave for it; otherwise
 * the server does not answer any more, and the client learns that from its own request.
 */
static void killed(const char *host, int port, int is_client)
{
    if (!is_client) {
        /* Soft-iWARP takes an end that comes with the answer for a refusal. */
        if (is_iwarp(answer()))
            sleep(1);
        kill(getpid(), SIGKILL);
    }
    struct rdma_cm_id *id = call(host, port);
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE }, *bad;
    struct ibv_wc wc;
    do {
        must(!ibv_post_send(id->qp, &wr, &bad), "ibv_post_send");
        wc = complete(id->send_cq);
    } while (wc.status == IBV_WC_SUCCESS);
    if (wc.status != IBV_WC_RETRY_EXC_ERR && wc.status != IBV_WC_WR_FLUSH_ERR)
        fail("completed with `%s`", ibv_wc_status_str(wc.status));
    /* Soft-iWARP takes no request for a connection that is gone. */
    if (!ibv_post_send(id->qp, &wr, &bad))
        expect_completion(id->send_cq, IBV_WC_WR_FLUSH_ERR);
    else
        must(is_iwarp(id), "ibv_post_send");
}

/* The same as `refused`, with as much as requests, refusals and answers can carry. */
static void longest(const char *host, int port, int is_client)
{
    is_longest = 1;
    refused(host, port, is_client);
}

static const struct {
    const char *name;
    void (*run)(const char *, int, int);
} SCENARIOS[] = {
    { "private-data", private_data },
    { "refused", refused },
    { "no-listener", no_listener },
    { "killed", killed },
    { "longest", longest },
};

int main(int argc, char **argv)
{
    const char *host = NULL;
    int option, port = 0, is_client = 0;
    while ((option = getopt(argc, argv, "a:p:c")) != -1) {
        switch (option) {
        case 'a': host = optarg; break;
        case 'p': port = atoi(optarg); break;
        case 'c': is_client = 1; break;
        default: return 2;
        }
    }
    if (!host || optind >= argc)
        return 2;
    channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    if (!is_client)
        listen_at(host, port);
    for (size_t i = 0; i < sizeof SCENARIOS / sizeof *SCENARIOS; i++) {
        if (strcmp(SCENARIOS[i].name, argv[optind]))
            continue;
        SCENARIOS[i].run(host, port, is_client);
        printf("%s: as it should be\n", argv[optind]);
        return 0;
    }
    return 2;
}
