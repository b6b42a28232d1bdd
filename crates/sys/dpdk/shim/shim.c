// DPDK's inline functions, and its structures, behind a few plain functions. Each returns 0 or a count where all went well,
// and a negative errno where not.

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

// A packet's buffer, and the bytes in it. `room` is what there is from `data` on.
struct provost_frame {
    struct rte_mbuf *buffer;
    uint8_t *data;
    uint32_t bytes;
    uint32_t room;
};

static struct provost_frame frame_of(struct rte_mbuf *buffer) {
    struct provost_frame frame = {
        .buffer = buffer,
        .data = rte_pktmbuf_mtod(buffer, uint8_t *),
        .bytes = rte_pktmbuf_data_len(buffer),
        .room = rte_pktmbuf_data_len(buffer) + rte_pktmbuf_tailroom(buffer),
    };
    return frame;
}

int provost_dpdk_init(int count, char **words) {
    return rte_eal_init(count, words) < 0 ? -rte_errno : 0;
}

int provost_dpdk_add_device(const char *name, const char *arguments) {
    return rte_eal_hotplug_add("vdev", name, arguments);
}

static struct rte_ring *ring_of(const char *name, const char *end, uint32_t packets) {
    char full[RTE_RING_NAMESIZE];
    snprintf(full, sizeof full, "%s%s", end, name);
    return rte_ring_create(full, packets, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
}

// Two devices of rings, each of which receives what the other sends.
int provost_dpdk_add_pair(const char *one, const char *other, uint32_t packets) {
    struct rte_ring *there = ring_of(one, "to_", packets);
    struct rte_ring *back = ring_of(one, "from_", packets);
    int failed = !there || !back || rte_eth_from_rings(one, &back, 1, &there, 1, 0) < 0 ||
                 rte_eth_from_rings(other, &there, 1, &back, 1, 0) < 0;
    if (failed && rte_errno == 0)
        return -EINVAL;
    return failed ? -rte_errno : 0;
}

int provost_dpdk_pool(const char *name, uint32_t buffers, uint16_t frame_bytes, struct rte_mempool **pool) {
    *pool = rte_pktmbuf_pool_create(name, buffers, 0, 0, frame_bytes + RTE_PKTMBUF_HEADROOM, SOCKET_ID_ANY);
    return *pool ? 0 : -rte_errno;
}

int provost_dpdk_port(const char *device, uint16_t *port) { return rte_eth_dev_get_port_by_name(device, port); }

// Starts a port with one queue each way; the numbers of descriptors become what the driver made of them.
int provost_dpdk_start(uint16_t port, struct rte_mempool *pool, uint16_t *receive, uint16_t *send, uint16_t mtu) {
    struct rte_eth_conf configuration;
    memset(&configuration, 0, sizeof configuration);
    int outcome = rte_eth_dev_configure(port, 1, 1, &configuration);
    if (outcome < 0)
        return outcome;
    outcome = rte_eth_dev_adjust_nb_rx_tx_desc(port, receive, send);
    if (outcome < 0)
        return outcome;
    // Not every driver can change it, and some have no need to.
    (void)rte_eth_dev_set_mtu(port, mtu);
    int node = rte_eth_dev_socket_id(port);
    outcome = rte_eth_rx_queue_setup(port, 0, *receive, node, NULL, pool);
    if (outcome < 0)
        return outcome;
    outcome = rte_eth_tx_queue_setup(port, 0, *send, node, NULL);
    if (outcome < 0)
        return outcome;
    return rte_eth_dev_start(port);
}

// Only then has the driver given all buffers back.
void provost_dpdk_close(uint16_t port) {
    (void)rte_eth_dev_stop(port);
    (void)rte_eth_dev_close(port);
}

int provost_dpdk_facts(uint16_t port, uint8_t mac[6], uint16_t *mtu) {
    struct rte_ether_addr address;
    int outcome = rte_eth_macaddr_get(port, &address);
    if (outcome < 0)
        return outcome;
    memcpy(mac, address.addr_bytes, 6);
    return rte_eth_dev_get_mtu(port, mtu);
}

// 1 if the link is up, 0 if it is down.
int provost_dpdk_link_is_up(uint16_t port) {
    struct rte_eth_link link;
    memset(&link, 0, sizeof link);
    int outcome = rte_eth_link_get_nowait(port, &link);
    return outcome < 0 ? outcome : link.link_status == RTE_ETH_LINK_UP;
}

#define BURST_MAX 64

uint16_t provost_dpdk_receive(uint16_t port, struct provost_frame *frames, uint16_t count) {
    struct rte_mbuf *buffers[BURST_MAX];
    if (count > BURST_MAX)
        count = BURST_MAX;
    uint16_t received = rte_eth_rx_burst(port, 0, buffers, count);
    for (uint16_t at = 0; at < received; at++) {
        frames[at] = frame_of(buffers[at]);
        // Only the first piece of a packet in several is seen; that it is cut short shows.
        rte_prefetch0(frames[at].data);
    }
    return received;
}

// Buffers that are sent are the driver's.
uint16_t provost_dpdk_send(uint16_t port, const struct provost_frame *frames, uint16_t count) {
    struct rte_mbuf *buffers[BURST_MAX];
    if (count > BURST_MAX)
        count = BURST_MAX;
    for (uint16_t at = 0; at < count; at++) {
        buffers[at] = frames[at].buffer;
        buffers[at]->data_len = frames[at].bytes;
        buffers[at]->pkt_len = frames[at].bytes;
    }
    return rte_eth_tx_burst(port, 0, buffers, count);
}

int provost_dpdk_take(struct rte_mempool *pool, struct provost_frame *frame) {
    struct rte_mbuf *buffer = rte_pktmbuf_alloc(pool);
    if (!buffer)
        return -ENOBUFS;
    *frame = frame_of(buffer);
    return 0;
}

void provost_dpdk_give_back(struct rte_mbuf *buffer) { rte_pktmbuf_free(buffer); }
