#!/bin/busybox sh
# The first process of the guest. Mounts the root of the host read-only, brings up the network and
# the driver on it, and becomes the agent that runs commands for `cargo xtask interop`.
#
# The kernel puts what it does not know of its command line into our environment:
#   agent      the program that becomes the agent, a path on the host
#   manage     address on the network of management, with its length
#   address    IPv4 address on the network under test, with its length
#   address6   the same for IPv6
#   mtu        MTU of that network
#   driver     the driver under test: rxe or siw

busybox=/bin/busybox
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8

$busybox mount -t proc proc /proc
$busybox mount -t sysfs sys /sys
$busybox mount -t devtmpfs dev /dev
exec < /dev/console > /dev/console 2>&1

give_up() {
    echo "interop: $*"
    $busybox poweroff -f
}

for module in $($busybox cat /modules/order); do
    $busybox insmod "/modules/$module" || echo "interop: $module is not loaded"
done

options=trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose
$busybox mount -t 9p -o $options host /host || give_up "no root of the host"
$busybox mount -t tmpfs run /host/run
$busybox mkdir /host/run/host
# The tree of the host as it is, under the tmpfs that hide some of it.
$busybox mount -o bind /host /host/run/host
$busybox mount -t tmpfs tmp /host/tmp
for folder in proc sys dev; do
    $busybox mount -o move /$folder /host/$folder
done
$busybox mkdir -p /host/dev/shm
$busybox mount -t tmpfs shm /host/dev/shm

settings=/host/proc/sys/net/ipv6/conf
for interface in all default eth0; do
    # An address can be used at once: there is no other host that could have it.
    echo 0 > $settings/$interface/accept_dad
    echo 0 > $settings/$interface/accept_ra
    echo 0 > $settings/$interface/router_solicitations
done
echo 1 > $settings/eth1/disable_ipv6

# By its path, or else busybox takes its own.
ip() { $busybox chroot /host /bin/ip "$@" || give_up "ip $*"; }
ip link set lo up
ip address add "$manage" dev eth1
ip link set eth1 up
ip link set eth0 mtu "$mtu"
ip address add "$address" dev eth0
ip address add "$address6" dev eth0 nodad
# The driver of the card (6.12) sets its multicast filter a moment after a program has joined.
ip link set eth0 allmulticast on up

$busybox chroot /host rdma link add ${driver}0 type $driver netdev eth0 || give_up "no $driver"
state=/host/sys/class/infiniband/${driver}0/ports/1/state
until $busybox grep -q ACTIVE $state && [ -e /host/dev/infiniband/uverbs0 ]; do
    $busybox usleep 100000
done

if [ $driver = rxe ]; then
    # The driver does not count wrong ICRCs, so a probe looks at what its check returns.
    trace=/host/sys/kernel/tracing
    $busybox mount -t tracefs trace $trace || give_up "no tracing"
    echo 'r:icrc rdma_rxe:rxe_icrc_check result=$retval:s32' > $trace/kprobe_events
    echo 'result != 0' > $trace/events/kprobes/icrc/filter
    echo 1 > $trace/events/kprobes/icrc/enable || give_up "no sight of ICRCs"
fi

exec $busybox chroot /host "/run/host$agent" interop --agent
