#!/bin/sh
# What the kernel of the guest does with disks that feroce serves, for `cargo xtask disks`.
#
# usage: disks.sh STEP MODULES ADDRESS
#   MODULES   the tree of the kernel, with its modules
#   ADDRESS   where the disks are; of the guest itself, if it is to have one
set -eu
step=$1 modules=$2 address=$3
subsystem=nqn.2024-01.com.example:disks
host=nqn.2024-01.com.example:guest
disk=/dev/nvme0n1

# connect SUBSYSTEM HOST
connect() {
    echo "transport=rdma,traddr=$address,trsvcid=4420,nqn=$1,hostnqn=$2,$options" \
        > /dev/nvme-fabrics
}
options=hostid=11111111-2222-3333-4444-555555555555,nr_io_queues=1,nr_write_queues=1
options=$options,keep_alive_tmo=5,reconnect_delay=1,ctrl_loss_tmo=60

await_disk() {
    until [ -b $disk ]; do sleep 0.2; done
}

# verify SIZE OFFSET: writes at random, reads everything back and compares
verify() {
    fio --name=verify --filename=$disk --rw=randwrite --bsrange=512-64k --iodepth=32 \
        --ioengine=libaio --direct=1 --size="$1" --offset="$2" --verify=crc32c \
        --verify_fatal=1 --output=/tmp/fio.out
    grep 'err= 0' /tmp/fio.out
}

case $step in
refused)
    modprobe -d "$modules" nvme-rdma
    if connect nqn.2024-01.com.example:none $host 2> /dev/null; then exit 1; fi
    if connect $subsystem nqn.2024-01.com.example:other 2> /dev/null; then exit 1; fi
    dmesg | grep -i 'connect invalid data parameter'
    dmesg | grep -i 'not allowed'
    ;;
connect)
    connect $subsystem $host
    await_disk
    dmesg | grep 'creating 2 I/O queues'
    ;;
files)
    modprobe -d "$modules" ext4
    mkfs.ext4 -q $disk
    mkdir /tmp/mnt
    mount $disk /tmp/mnt
    head -c 8000000 /dev/urandom > /tmp/data
    cp /tmp/data /tmp/mnt/data
    umount /tmp/mnt
    blockdev --flushbufs $disk
    mount $disk /tmp/mnt
    cmp /tmp/data /tmp/mnt/data
    rm /tmp/mnt/data
    fstrim -v /tmp/mnt
    umount /tmp/mnt
    e2fsck -fn $disk
    ;;
verify)
    verify 16m 0
    ;;
killed)
    # The target is ended and started again meanwhile.
    verify 16m 128m
    dmesg | grep 'Successfully reconnected'
    ;;
disconnect)
    echo 1 > /sys/class/nvme/nvme0/delete_controller
    while [ -e $disk ]; do sleep 0.2; done
    ;;
export)
    # The other way round: the kernel's target, for our host.
    modprobe -d "$modules" nvmet-rdma
    mountpoint -q /sys/kernel/config || mount -t configfs config /sys/kernel/config
    cd /sys/kernel/config/nvmet
    mkdir subsystems/$subsystem
    echo 1 > subsystems/$subsystem/attr_allow_any_host
    truncate -s 16M /tmp/exported
    mkdir subsystems/$subsystem/namespaces/1
    cd subsystems/$subsystem/namespaces/1
    printf /tmp/exported > device_path
    echo 1 > buffered_io
    echo 1 > enable
    cd /sys/kernel/config/nvmet
    mkdir ports/1
    echo ipv4 > ports/1/addr_adrfam
    echo rdma > ports/1/addr_trtype
    echo "$address" > ports/1/addr_traddr
    echo 4420 > ports/1/addr_trsvcid
    ln -s /sys/kernel/config/nvmet/subsystems/$subsystem ports/1/subsystems/
    ;;
esac
