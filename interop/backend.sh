#!/bin/sh
# Runs feroce on the devices of the kernel this runs on: the backend `rdma-core`.
#
# Usage: backend.sh FEROCE [TEST...]
#
# FEROCE is the command; each TEST is a test program of the crate `feroce` (verbs, asynchronous),
# which runs on the first device. Any machine with RDMA drivers will do, also one that has only
# Soft-RoCE: rdma link add rxe0 type rxe netdev eth0
feroce=$1
shift
failed=0

try() {
    if said=$("$@" 2>&1); then
        echo "ok      $*"
    else
        echo "FAILED  $*"
        echo "$said" | tail -n 20
        failed=1
    fi
}

export FEROCE_BACKEND=rdma-core
device=$("$feroce" devinfo -l | sed -n '2s/^[[:space:]]*//p')
if [ -z "$device" ]; then
    echo "FAILED  there is no device"
    exit 1
fi
export FEROCE_TEST_DEVICE="$device"
try "$feroce" devinfo -v
for kind in rc uc ud srq; do
    try "$feroce" $kind-pingpong --both -n 50 -c
    try "$feroce" $kind-pingpong --both -n 50 -e
done
for op in write read send atomic; do
    try "$feroce" perf $op bw --both -n 50
    try "$feroce" perf $op lat --both -n 50
done
try "$feroce" rping --both -C 5
try "$feroce" rping --both -C 5 -q
try "$feroce" client --both
try "$feroce" ucmatose --both -c 3
try "$feroce" udaddy --both -c 2
try "$feroce" cmtime --both -c 5
for test in "$@"; do
    # Many queue pairs at once take an emulated machine minutes, and Soft-RoCE gives no group what
    # comes from its own host.
    try "$test" --skip a_thousand --skip multicast
done
exit $failed
