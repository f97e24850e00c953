#!/bin/sh
# RoCEv1 on interfaces of VLANs that the kernel has: in the guest, for
# `cargo xtask interop --guest`, as root anywhere else where the kernel has veth and 8021q.
#
# usage: vlan.sh FEROCE [MODULES]
#   FEROCE    the feroce command
#   MODULES   the tree of the kernel, with its modules
set -eu
feroce=$1
for module in veth 8021q; do
    modprobe ${2:+-d "$2"} $module
done

for end in a b; do
    ip netns add $end
done
ip link add va netns a type veth peer name vb netns b
number=1
for end in a b; do
    ip -n $end link set lo up
    ip netns exec $end sysctl -qw net.ipv6.conf.v$end.disable_ipv6=1
    ip -n $end link set v$end mtu 9000 up
    ip -n $end link add link v$end name v$end.100 type vlan id 100
    ip -n $end address add 10.9.0.$number/24 dev v$end.100
    ip -n $end link set v$end.100 up
    number=$((number + 1))
done

ip netns exec a "$feroce" devinfo -d va.100 -v | grep GID
# Frames as they are on the cable, with their tags.
ip netns exec b tcpdump -l -e -n -i vb vlan > /tmp/frames 2> /tmp/tcpdump.out &
sniffer=$!
until grep -q 'listening on' /tmp/tcpdump.out; do sleep 0.2; done

# pair PRIORITY PROGRAM OPTIONS...: both ends, with this service level
pair() {
    priority=$1
    shift
    ip netns exec a "$feroce" "$@" -d va.100 -l "$priority" > /tmp/server.out 2>&1 &
    server=$!
    until ip netns exec a grep -qs ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.2; done
    ip netns exec b "$feroce" "$@" -d vb.100 -l "$priority" 10.9.0.1
    wait $server
}
for priority in 0 5; do
    pair $priority rc-pingpong -g 2 -n 100
    pair $priority ud-pingpong -g 2 -n 100
done
kill $sniffer
wait $sniffer || true
for priority in 0 5; do
    grep -q "vlan 100, p $priority, ethertype.*0x8915" /tmp/frames
done
echo "RoCEv1 in VLANs of the kernel: as it should be"
