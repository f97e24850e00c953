#!/bin/sh
# Measures how feroce scales over the processors of this machine: `feroce perf` between two network
# namespaces that a veth pair joins (MTU 9000), with 1, 4 and 16 queue pairs and 1, 4 and 8 shards,
# beside iperf3, and between two processes of this host; small messages also by a thread for each
# shard. Prints two tables. Needs no privilege where users may have namespaces.
#
# Usage: scale.sh [SECONDS]     each measurement takes so long (default: 2)
# shellcheck disable=SC2086
set -eu
here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:-2}
if [ "${SCALE_INSIDE:-}" != 1 ]; then
    exec env SCALE_INSIDE=1 unshare --user --map-root-user --net --mount "$0" "$seconds"
fi
PATH=$here/bin:$PATH
export LD_LIBRARY_PATH="$here/lib"
mount -t tmpfs tmpfs /dev/shm
unshare --net sleep 100000 &
peer=$!
process=
trap 'kill $peer $process 2>/dev/null || true' EXIT
# The namespace is there when the process is in another one than this.
until [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
# A program there is a child of this shell, not of a function, so that its number is known.
there="nsenter --net=/proc/$peer/ns/net"
ip link add va mtu 9000 type veth peer name vb mtu 9000 netns $peer
ip address add 10.99.0.1/24 dev va
ip link set va up
ip link set lo up
$there ip address add 10.99.0.2/24 dev vb
$there ip link set vb up
$there ip link set lo up
sleep 1

# figure SHARDS NAME ARGUMENTS...: what a client measured. $side runs a program where the server is,
# which has the arguments $server and the address $to; the client has $client.
figure() {
    shards=$1 name=$2
    shift 2
    FEROCE_SHARDS=$shards $side feroce perf "$@" $server >/dev/null 2>"$log.server" &
    process=$!
    # The server listens soon; on a busy machine it takes a while.
    tries=0
    until $side sh -c 'grep -q ":4853 .* 0A " /proc/net/tcp /proc/net/tcp6' || [ $tries -ge 100 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    if ! FEROCE_SHARDS=$shards timeout 60 feroce --json perf "$@" -D "$seconds" $client $to \
        >"$log" 2>"$log.client"; then
        cat "$log.client" "$log.server" >&2
        echo '-'
    else
        sed -n "s/.*\"$name\":\([0-9.e+]*\).*/\1/p" "$log" | tail -n 1
    fi
    kill $process 2>/dev/null || true
    wait $process 2>/dev/null || true
}

log=$(mktemp)
echo "$(nproc) processors, $(uname -r), veth with MTU 9000, $seconds s for each figure"
if command -v iperf3 >/dev/null; then
    for streams in 1 4 16; do
        $there iperf3 -s -1 >/dev/null 2>&1 &
        process=$!
        sleep 1
        rate=$(iperf3 -c 10.99.0.2 -t "$seconds" -P $streams -J |
            sed -n '/"sum_received"/,/}/s/.*"bits_per_second":[[:space:]]*\([0-9.e+]*\).*/\1/p')
        wait $process 2>/dev/null || true
        echo "$rate" | awk -v n=$streams '{ printf "iperf3, %2d streams: %7.1f Gb/s\n", n, $1 / 1e9 }'
    done
else
    echo 'iperf3 is not here'
fi
# table MEMORY ROW...: a line for each number of queue pairs of each row.
table() {
    memory=$1
    shift
    printf '%-22s %4s %12s %12s %12s\n' operation QPs '1 shard' '4 shards' '8 shards'
    for row in "$@"; do
        set -- $row
        op=$1 size=$2 unit=$3 by=${4:-}
        for qps in 1 4 16; do
            # A thread for each shard needs queue pairs for all.
            if [ -n "$by" ] && [ $qps -lt 16 ]; then continue; fi
            line=$(printf '%-22s %4d' "$op $size, $unit${by:+, $by}" $qps)
            for shards in 1 4 8; do
                if [ "$unit" = M/s ]; then
                    threads=1
                    [ -z "$by" ] || threads=$shards
                    value=$(figure $shards msg_per_s "$op" bw -s "$size" -q $qps -t 512 -l 32 \
                        --threads $threads --memory "$memory")
                    value=$(echo "$value" | awk '{ printf "%.2f", $1 / 1e6 }')
                else
                    value=$(figure $shards gbit_per_s "$op" bw -s "$size" -q $qps -t 16 \
                        --memory "$memory")
                    value=$(echo "$value" | awk '{ printf "%.1f", $1 }')
                fi
                line="$line $(printf '%12s' "$value")"
            done
            echo "$line"
        done
    done
}

side=$there server='' client='' to=10.99.0.2
table shareable 'write 1M Gb/s' 'send 1M Gb/s' 'read 1M Gb/s' 'write 8 M/s' 'write 8 M/s threads'
side='' server='--address 127.9.0.1' client='--address 127.9.0.2' to=127.9.0.1
for memory in ordinary shareable; do
    echo "two processes of this host, $memory memory:"
    table $memory 'write 1M Gb/s' 'send 1M Gb/s' 'read 1M Gb/s' 'write 8 M/s' \
        'write 8 M/s threads' 'send 8 M/s threads'
done
rm -f "$log" "$log.client" "$log.server"
