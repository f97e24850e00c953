/* Connections by address, and messages: a server that sends back what it receives.
 *
 *     cm_echo                       both ends, in two processes
 *     cm_echo -s 127.0.0.1 7471     the server
 *     cm_echo 127.0.0.1 7471        the client
 */
#include "example.h"

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { MESSAGES = 5, LENGTH = 64 };

/* An id with a queue pair for 127.0.0.1:7471 and the like. */
static struct rdma_cm_id *make_id(const char *host, const char *port, int flags)
{
    struct rdma_addrinfo *found, hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP };
    CHECK(!rdma_getaddrinfo(host, port, &hints, &found));
    struct ibv_qp_init_attr init = {
        .sq_sig_all = 1,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    struct rdma_cm_id *id;
    CHECK(!rdma_create_ep(&id, found, NULL, &init));
    rdma_freeaddrinfo(found);
    return id;
}

/* Serves one client. `ready` gets the port, if it is a descriptor. */
static void server(const char *host, const char *port, int ready)
{
    char buffers[2][LENGTH];
    struct rdma_cm_id *listener = make_id(host, port, RAI_PASSIVE), *client;
    CHECK(!rdma_listen(listener, 0));
    uint16_t number = ntohs(rdma_get_src_port(listener));
    if (ready >= 0)
        CHECK(write(ready, &number, sizeof number) == sizeof number);

    CHECK(!rdma_get_request(listener, &client));
    struct ibv_mr *mr = rdma_reg_msgs(client, buffers, sizeof buffers);
    CHECK(mr);
    /* A message that finds no receive is refused ("receiver not ready"), and comes again after
     * 655 ms with the settings of librdmacm. So the first receive is there before the client may
     * send, and the next one before the echo, which lets the client send again. */
    CHECK(!rdma_post_recv(client, NULL, buffers[0], LENGTH, mr));
    CHECK(!rdma_accept(client, NULL));
    for (int i = 0; i < MESSAGES; i++) {
        char *message = buffers[i % 2], *next = buffers[(i + 1) % 2];
        struct ibv_wc wc;
        CHECK(rdma_get_recv_comp(client, &wc) == 1);
        expect_success(wc);
        CHECK(!rdma_post_recv(client, NULL, next, LENGTH, mr));
        CHECK(!rdma_post_send(client, NULL, message, wc.byte_len, mr, 0));
        CHECK(rdma_get_send_comp(client, &wc) == 1);
        expect_success(wc);
    }
    rdma_disconnect(client);
    rdma_dereg_mr(mr);
    rdma_destroy_ep(client);
    rdma_destroy_ep(listener);
}

static void client(const char *host, const char *port)
{
    char out[LENGTH], in[LENGTH];
    struct rdma_cm_id *id = make_id(host, port, 0);
    struct ibv_mr *out_mr = rdma_reg_msgs(id, out, sizeof out);
    struct ibv_mr *in_mr = rdma_reg_msgs(id, in, sizeof in);
    CHECK(out_mr && in_mr);
    CHECK(!rdma_connect(id, NULL));
    for (int i = 0; i < MESSAGES; i++) {
        struct ibv_wc wc;
        int length = snprintf(out, sizeof out, "message %d", i) + 1;
        CHECK(!rdma_post_recv(id, NULL, in, sizeof in, in_mr));
        CHECK(!rdma_post_send(id, NULL, out, length, out_mr, 0));
        CHECK(rdma_get_send_comp(id, &wc) == 1);
        expect_success(wc);
        CHECK(rdma_get_recv_comp(id, &wc) == 1);
        expect_success(wc);
        CHECK(wc.byte_len == (uint32_t)length && strcmp(in, out) == 0);
        printf("client: \"%s\" came back\n", in);
    }
    rdma_disconnect(id);
    rdma_dereg_mr(out_mr);
    rdma_dereg_mr(in_mr);
    rdma_destroy_ep(id);
}

static int both(void)
{
    pid_t child;
    int socket = split(&child);
    char host[INET6_ADDRSTRLEN], port[8];
    own_address(host);
    if (child == 0) {
        server(host, "0", socket);
        return 0;
    }
    uint16_t number;
    CHECK(recv(socket, &number, sizeof number, MSG_WAITALL) == sizeof number);
    snprintf(port, sizeof port, "%u", number);
    client(host, port);
    expect_end(child);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 1)
        return both();
    if (argc == 4 && strcmp(argv[1], "-s") == 0)
        server(argv[2], argv[3], -1);
    else if (argc == 3)
        client(argv[1], argv[2]);
    else
        fprintf(stderr, "usage: %s [[-s] ADDRESS PORT]\n", argv[0]);
    return argc != 3 && argc != 4;
}
