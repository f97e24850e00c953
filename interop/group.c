/*
 * One end of a multicast group, with verbs alone. mckey does the same with the connection manager,
 * but that of Linux joins no groups of IPv6 over RoCEv2.
 *
 *     group -d DEVICE -g GID_INDEX -p TCP_PORT -m PATH_MTU GROUP [SERVER]
 *
 * Without SERVER it is the server, which is a member of the group; the client sends to it. Every
 * byte is compared.
 */
#include "end.h"

#include <ifaddrs.h>
#include <net/if.h>

enum { COUNT = 5, LEN = 1000, GRH = 40, QKEY = 0x1234, EVERY_MEMBER = 0xffffff };

/* An address as a GID: those of IPv4 are mapped. */
static union ibv_gid gid_of(int family, const void *address)
{
    union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };
    if (family == AF_INET)
        memcpy(gid.raw + 12, address, 4);
    else
        memcpy(gid.raw, address, sizeof gid.raw);
    return gid;
}

static union ibv_gid parsed(const char *text, int *family)
{
    uint8_t address[16];
    *family = strchr(text, ':') ? AF_INET6 : AF_INET;
    must(inet_pton(*family, text, address) == 1, "inet_pton");
    return gid_of(*family, address);
}

/* The interface that has an address. */
static unsigned interface_of(const union ibv_gid *gid)
{
    struct ifaddrs *all = NULL;
    unsigned index = 0;
    must(!getifaddrs(&all), "getifaddrs");
    for (struct ifaddrs *one = all; one; one = one->ifa_next) {
        if (!one->ifa_addr)
            continue;
        int family = one->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6)
            continue;
        const void *at = family == AF_INET
            ? (void *)&((struct sockaddr_in *)one->ifa_addr)->sin_addr
            : (void *)&((struct sockaddr_in6 *)one->ifa_addr)->sin6_addr;
        union ibv_gid own = gid_of(family, at);
        if (!memcmp(&own, gid, sizeof own))
            index = if_nametoindex(one->ifa_name);
    }
    freeifaddrs(all);
    must(index != 0, "finding the interface");
    return index;
}

/* The host joins by IP: attaching a queue pair does not do that on Linux. Ends with the process. */
static void join_by_ip(const union ibv_gid *group, int family, unsigned interface)
{
    int udp = socket(family, SOCK_DGRAM, 0);
    if (family == AF_INET) {
        struct ip_mreqn v4 = { .imr_ifindex = interface };
        memcpy(&v4.imr_multiaddr, group->raw + 12, 4);
        must(!setsockopt(udp, IPPROTO_IP, IP_ADD_MEMBERSHIP, &v4, sizeof v4), "joining");
    } else {
        struct ipv6_mreq v6 = { .ipv6mr_interface = interface };
        memcpy(&v6.ipv6mr_multiaddr, group->raw, sizeof group->raw);
        must(!setsockopt(udp, IPPROTO_IPV6, IPV6_JOIN_GROUP, &v6, sizeof v6), "joining");
    }
}

static void make_datagram_qp(struct end *end)
{
    struct ibv_qp_init_attr init = {
        .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    end->qp = ibv_create_qp(end->pd, &init);
    must(end->qp != NULL, "ibv_create_qp");
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
    must(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                        IBV_QP_QKEY), "INIT");
    attr.qp_state = IBV_QPS_RTR;
    must(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE), "RTR");
    attr.qp_state = IBV_QPS_RTS;
    must(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
}

static uint8_t byte_at(int i, int number)
{
    return i * 7 + number;
}

static void post_receive(struct end *end)
{
    struct ibv_sge sge = { (uintptr_t)end->memory, GRH + LEN, end->mr->lkey };
    struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
    must(!ibv_post_recv(end->qp, &wr, &bad), "ibv_post_recv");
}

static void send_to(struct end *end, struct ibv_ah *ah, int number)
{
    for (int i = 0; i < LEN; i++)
        end->memory[i] = byte_at(i, number);
    struct ibv_sge sge = { (uintptr_t)end->memory, LEN, end->mr->lkey };
    struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = EVERY_MEMBER;
    wr.wr.ud.remote_qkey = QKEY;
    must(!ibv_post_send(end->qp, &wr, &bad), "ibv_post_send");
    must(complete(end).status == IBV_WC_SUCCESS, "sending");
}

static void check(struct end *end, int number)
{
    struct ibv_wc wc = complete(end);
    must(wc.status == IBV_WC_SUCCESS, "receiving");
    if (wc.byte_len != GRH + LEN)
        fail("received %" PRIu32 " bytes", wc.byte_len);
    for (int i = 0; i < LEN; i++)
        if (end->memory[GRH + i] != byte_at(i, number))
            fail("datagram %d: byte %d is wrong", number, i);
}

int main(int argc, char **argv)
{
    const char *name;
    int family;
    struct ibv_ah *ah = NULL;
    struct end end = begin(argc, argv, GRH + LEN, &name);
    union ibv_gid group = parsed(name, &family), own;
    must(!ibv_query_gid(end.context, 1, end.gid_index, &own), "ibv_query_gid");
    make_datagram_qp(&end);
    if (end.is_client) {
        struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1,
            .grh = { .dgid = group, .sgid_index = end.gid_index, .hop_limit = 1 } };
        ah = ibv_create_ah(end.pd, &attr);
        must(ah != NULL, "ibv_create_ah");
    } else {
        join_by_ip(&group, family, interface_of(&own));
        must(!ibv_attach_mcast(end.qp, &group, 0), "ibv_attach_mcast");
    }
    for (int number = 0; number < COUNT; number++) {
        if (!end.is_client)
            post_receive(&end);
        together(&end);
        if (end.is_client)
            send_to(&end, ah, number);
        else
            check(&end, number);
        together(&end);
    }
    if (!end.is_client)
        must(!ibv_detach_mcast(end.qp, &group, 0), "ibv_detach_mcast");
    printf("%d datagrams: as it should be\n", COUNT);
    return 0;
}
