/* Calls of libibumad on the second host of a fabric that no subnet manager has seen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <infiniband/umad.h>

#define MUST(what)                                                                  \
    do {                                                                        \
        if (!(what)) {                                                      \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #what, errno); \
            exit(1);                                                    \
        }                                                                   \
    } while (0)

static long get_and_set[2] = { 1 << 1 | 1 << 2 };

/* A request for NodeInfo by a directed route of so many hops out of port 1. */
static void node_info(uint8_t *umad, int hops)
{
    uint8_t *mad = umad_get_mad(umad);

    memset(umad, 0, umad_size() + 256);
    mad[0] = 1, mad[1] = 0x81, mad[2] = 1, mad[3] = 1;
    mad[7] = hops;
    mad[15] = 42;
    mad[17] = 0x11;
    mad[32] = mad[33] = mad[34] = mad[35] = 0xff;
    mad[129] = 1;
    MUST(umad_set_addr(umad, 0xffff, 0, 0, 0) == 0);
}

static void *waits(void *fd)
{
    uint8_t *umad = umad_alloc(1, umad_size() + 256);
    int length = 256;

    umad_recv(*(int *)fd, umad, &length, -1);
    return NULL;
}

static void adapters(void)
{
    char names[4][UMAD_CA_NAME_LEN], path[256];
    __be64 guids[4];
    umad_ca_t ca;
    umad_port_t port;

    MUST(umad_init() == 0);
    MUST(umad_get_cas_names(names, 4) == 1 && !strcmp(names[0], "feroce0"));
    MUST(umad_get_ca_portguids("feroce0", guids, 4) == 3 && guids[0] == 0);
    MUST(umad_get_ca_portguids("feroce0", guids, 2) == -ENOMEM);
    MUST(umad_get_ca(NULL, &ca) == 0 && ca.numports == 2 && ca.node_type == 1);
    MUST(!ca.ports[0] && ca.ports[1]->port_guid == guids[1]);
    MUST(ca.ports[1]->state == 2 && ca.ports[2]->state == 1);
    MUST(ca.ports[1]->pkeys_size == 64 && ca.ports[1]->pkeys[0] == 0xffff);
    MUST(umad_release_ca(&ca) == 0);
    MUST(umad_get_ca("mlx5_0", &ca) == -ENODEV);
    /* Port 0 is any port: the first with a link. */
    MUST(umad_get_port("feroce0", 0, &port) == 0 && port.portnum == 1);
    MUST(!strcmp(port.link_layer, "IB") && port.rate == 10 && port.base_lid == 0);
    MUST(umad_release_port(&port) == 0);
    MUST(umad_get_port("feroce0", 3, &port) == -ENODEV);
    MUST(umad_get_issm_path("feroce0", 1, path, sizeof path) == 0);
    MUST(umad_get_issm_path("feroce0", 1, path, 4) == -ENOMEM);

    struct umad_device_node *list = umad_get_ca_device_list();
    MUST(list && !list->next && !strcmp(list->ca_name, "feroce0"));
    MUST(umad_sort_ca_device_list(&list, 0) == 0);
    umad_free_ca_device_list(list);
}

static void agents(int fd)
{
    struct umad_reg_attr attr = { .mgmt_class = 3, .mgmt_class_version = 2, .flags = 2 };
    uint8_t oui[3] = { 0, 1, 2 };
    uint32_t agent;
    int first, other = umad_open_port("feroce0", 1);

    MUST(other >= 0 && umad_get_fd(other) == other);
    first = umad_register(fd, 0x0b, 1, 0, get_and_set);
    MUST(first >= 0);
    /* Others of the port get no method twice, but other versions, ports and organisations. */
    MUST(umad_register(other, 0x0b, 1, 0, get_and_set) == -EPERM);
    MUST(umad_register(other, 0x0b, 2, 0, get_and_set) == 0);
    MUST(umad_register(other, 0x0b, 1, 0, NULL) == 1);
    MUST(umad_register_oui(other, 0x0b, 0, oui, get_and_set) == -EINVAL);
    MUST(umad_register_oui(fd, 0x32, 1, oui, get_and_set) >= 0);
    MUST(umad_register_oui(other, 0x32, 1, oui, get_and_set) == -EPERM);
    oui[2] = 3;
    MUST(umad_register_oui(other, 0x32, 1, oui, get_and_set) == 2);
    MUST(umad_register(other, 4, 1, 1, NULL) == -EPERM);
    MUST(umad_unregister(fd, first) == 0 && umad_unregister(fd, first) == -1);
    MUST(umad_register(other, 0x0b, 1, 0, get_and_set) == 3);
    MUST(umad_register2(other, &attr, &agent) == EINVAL && attr.flags == UMAD_USER_RMPP);
    MUST(umad_register2(other, &attr, &agent) == 0 && agent == 4);
    MUST(umad_close_port(other) == 0 && umad_close_port(other) == -1);
    /* What a closed port had is free. */
    MUST(umad_register(fd, 0x0b, 2, 0, get_and_set) >= 0);
}

static void datagrams(int fd)
{
    uint8_t *umad = umad_alloc(1, umad_size() + 256), *mad = umad_get_mad(umad);
    struct pollfd entry = { fd, POLLIN, 0 };
    int length, agent = umad_register(fd, 0x81, 1, 0, NULL);
    pthread_t thread;

    MUST(agent >= 0);
    MUST(umad_poll(fd, 1) == -ETIMEDOUT && poll(&entry, 1, 0) == 0);
    length = 256;
    MUST(umad_recv(fd, umad, &length, 1) == -ETIMEDOUT);
    /* A directed route of no hops is answered by the own agent, of one hop by the switch. */
    for (int hops = 0; hops < 2; hops++) {
        node_info(umad, hops);
        MUST(umad_send(fd, agent, umad, 256, 1000, 0) == 0);
        MUST(umad_poll(fd, 1000) == 0 && poll(&entry, 1, 0) == 1);
        /* A buffer that is too short: the datagram stays. */
        length = 24;
        MUST(umad_recv(fd, umad, &length, 1000) == -ENOSPC && length == 256);
        MUST(umad_recv(fd, umad, &length, 1000) == agent && length == 256);
        MUST(umad_status(umad) == 0 && mad[3] == 0x81 && mad[15] == 42);
        MUST(mad[64 + 2] == (hops ? 2 : 1));
    }
    /* Two hops lead to the other host, four to where no link is. */
    node_info(umad, 2);
    mad[130] = 4;
    MUST(umad_send(fd, agent, umad, 256, 20, 2) == 0);
    length = 256;
    MUST(umad_recv(fd, umad, &length, 5000) == agent);
    MUST(umad_status(umad) == ETIMEDOUT && length == 24 && mad[15] == 42);
    /* An agent that the program does not have. */
    node_info(umad, 0);
    MUST(umad_send(fd, 30, umad, 256, 20, 0) == 0);
    length = 256;
    MUST(umad_recv(fd, umad, &length, 5000) == 30 && umad_status(umad) == EINVAL);
    /* Non-blocking, as a file of the kernel's. */
    MUST(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    length = 256;
    MUST(umad_recv(fd, umad, &length, 0) == -EWOULDBLOCK);
    MUST(fcntl(fd, F_SETFL, 0) == 0);
    /* A thread that waits can be cancelled, and the port is of use afterwards. */
    MUST(pthread_create(&thread, NULL, waits, &fd) == 0);
    usleep(20000);
    MUST(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
    node_info(umad, 0);
    MUST(umad_send(fd, agent, umad, 256, 1000, 0) == 0);
    length = 256;
    MUST(umad_recv(fd, umad, &length, 1000) == agent && umad_status(umad) == 0);
    umad_free(umad);
}

static void fields(void)
{
    uint8_t *umad = umad_alloc(1, umad_size() + 256);
    ib_mad_addr_t from = { .gid = { 0xfe, 0x80 }, .hop_limit = 3, .flow_label = 5 };
    ib_mad_addr_t *to = umad_get_mad_addr(umad);

    umad_set_addr(umad, 7, 1, 2, 0x80010000);
    umad_set_pkey(umad, 3);
    umad_set_grh(umad, &from);
    MUST(to->lid == htons(7) && to->qpn == htonl(1) && to->sl == 2);
    MUST(to->qkey == htonl(0x80010000) && umad_get_pkey(umad) == 3);
    MUST(to->grh_present && to->hop_limit == 3 && to->flow_label == htonl(5));
    MUST(!memcmp(to->gid, from.gid, 16));
    umad_set_grh(umad, NULL);
    umad_set_addr_net(umad, htons(9), htonl(1), 0, 0);
    MUST(!to->grh_present && to->lid == htons(9));
    MUST(umad_debug(2) == 2 && umad_debug(-1) == 2);
    umad_free(umad);
}

/* Calls of newer libraries than the one that this is linked with. */
struct umad_ca_pair {
    char smi_name[UMAD_CA_NAME_LEN];
    uint32_t smi_preferred_port;
    char gsi_name[UMAD_CA_NAME_LEN];
    uint32_t gsi_preferred_port;
};

static void newer(int is_there)
{
    int (*open_smi)(const char *, int) = dlvsym(RTLD_DEFAULT, "umad_open_smi_port", "IBUMAD_1.3");
    int (*all)(struct umad_ca_pair *, size_t) =
        dlvsym(RTLD_DEFAULT, "umad_get_smi_gsi_pairs", "IBUMAD_1.4");
    int (*by_name)(const char *, uint8_t, struct umad_ca_pair *, unsigned) =
        dlvsym(RTLD_DEFAULT, "umad_get_smi_gsi_pair_by_ca_name", "IBUMAD_1.4");
    struct umad_ca_pair pairs[2] = { { "x", 7, "y", 7 }, { "x", 7, "y", 7 } };

    MUST(open_smi && all && by_name);
    if (!is_there) {
        MUST(open_smi(NULL, 0) == -ENODEV && all(pairs, 2) == 0 && !*pairs[1].smi_name);
        MUST(by_name(NULL, 0, pairs, 0) == 0);
        return;
    }
    int fd = open_smi("feroce0", 1);
    MUST(fd >= 0 && umad_register(fd, 0x81, 1, 0, NULL) >= 0 && umad_close_port(fd) == 0);
    MUST(all(pairs, 2) == 1 && !*pairs[1].gsi_name && !pairs[0].smi_preferred_port);
    MUST(!strcmp(pairs[0].smi_name, "feroce0") && !strcmp(pairs[0].gsi_name, "feroce0"));
    /* The second port has no link, and is chosen by name only. */
    MUST(by_name(NULL, 0, pairs, 1) == 0 && pairs[0].smi_preferred_port == 1);
    MUST(by_name("feroce0", 2, pairs, 1) == 0 && pairs[0].gsi_preferred_port == 2);
    MUST(by_name(NULL, 2, pairs, 1) == -ENODEV && errno == ENODEV && !*pairs[0].smi_name);
    MUST(by_name("feroce0", 3, pairs, 0) == -ENODEV && by_name("mlx5_0", 0, pairs, 0) == -ENODEV);
    MUST(by_name("feroce0", 1, NULL, 0) == -1);
}

int main(int count, char **words)
{
    char names[4][UMAD_CA_NAME_LEN];
    int fd;

    if (count > 1) {
        MUST(umad_init() == 0 && umad_get_cas_names(names, 4) == 0);
        MUST(umad_open_port(NULL, 0) == -ENODEV && !umad_get_ca_device_list());
        newer(0);
        return 0;
    }
    adapters();
    newer(1);
    fd = umad_open_port(NULL, 0);
    MUST(fd >= 0);
    MUST(umad_open_port("feroce0", 5) == -ENODEV);
    agents(fd);
    datagrams(fd);
    fields();
    MUST(umad_close_port(fd) == 0 && umad_done() == 0);
    return 0;
}
