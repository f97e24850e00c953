#!/bin/sh
# What the kernel of the guest does with the disks of three computers: a mirror and a stripe, by its
# own md and LVM, for `cargo xtask disks --mirror`.
#
# usage: mirror.sh STEP MODULES ADDRESS...
#   MODULES   the tree of the kernel, with its modules
#   ADDRESS   where the disks are, one each
set -eu
step=$1 modules=$2
shift 2
name=nqn.2024-01.com.example:disk
host=nqn.2024-01.com.example:guest
array=/dev/md0
# LVM without udev and without files of its own.
lvm="devices { obtain_device_list_from_udev=0 external_device_info_source=\"none\" use_devicesfile=0 }
    activation { udev_sync=0 udev_rules=0 monitoring=0 } backup { backup=0 archive=0 }"

# connect ADDRESS...: their disks become nvme0n1, nvme1n1 and so on
connect() {
    number=0
    for address in "$@"; do
        nvme connect --transport=rdma --traddr="$address" --trsvcid=4420 \
            --nqn=$name-$((number + 1)) --hostnqn=$host \
            --hostid=11111111-2222-3333-4444-555555555555 \
            --nr-io-queues=1 --keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=600
        until [ -b /dev/nvme${number}n1 ]; do sleep 0.2; done
        number=$((number + 1))
    done
}

# await_array WORDS: /proc/mdstat says so of the array
await_array() {
    until grep -F "$1" /proc/mdstat; do sleep 0.2; done
}

await_idle() {
    until [ "$(cat /sys/block/md0/md/sync_action)" = idle ]; do sleep 0.2; done
}

# load FILE SIZE: writes at random, reads everything back and compares
load() {
    fio --name=load --filename="$1" --size="$2" --rw=randwrite --bsrange=512-64k --iodepth=16 \
        --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --output=/tmp/fio.out
    grep 'err= 0' /tmp/fio.out
}

case $step in
connect)
    for module in nvme-rdma raid10 dm-mod ext4; do modprobe -d "$modules" $module; done
    nvme discover --transport=rdma --traddr="$1" --trsvcid=4420 --hostnqn=$host \
        --hostid=11111111-2222-3333-4444-555555555555 | grep "subnqn: *$name-1"
    connect "$@"
    # A mirror does not wait for a disk that may come back: it goes on with the others.
    for file in /sys/class/nvme/nvme*/fast_io_fail_tmo; do echo 2 > "$file"; done
    nvme list
    nvme smart-log /dev/nvme0 | grep '^host_read_commands'
    ;;
make)
    # Each block is on two of the three disks, and blocks that follow each other on all of them.
    mdadm --create $array --level=10 --raid-devices=3 --bitmap=internal --run \
        /dev/nvme0n1 /dev/nvme1n1 /dev/nvme2n1
    await_idle
    await_array '[UUU]'
    lvm pvcreate --config "$lvm" $array
    lvm vgcreate --config "$lvm" far $array
    lvm lvcreate --config "$lvm" --name data --extents 100%FREE --wipesignatures n far
    mkfs.ext4 -q /dev/far/data
    mkdir -p /tmp/mnt
    mount /dev/far/data /tmp/mnt
    head -c 4000000 /dev/urandom > /tmp/data
    cp /tmp/data /tmp/mnt/before
    ;;
load)
    # A target is killed meanwhile.
    load /tmp/mnt/load 24m
    cp /tmp/data /tmp/mnt/after
    sync
    ;;
lost)
    await_array '[U_U]'
    ;;
returned)
    until [ "$(cat /sys/class/nvme/nvme1/state)" = live ]; do sleep 0.2; done
    mdadm $array --remove /dev/nvme1n1
    # Only what was written meanwhile is copied: the bitmap of the array knows.
    mdadm $array --re-add /dev/nvme1n1
    await_array '[UUU]'
    await_idle
    dmesg | grep 'md0: recovery done'
    echo check > /sys/block/md0/md/sync_action
    await_idle
    different=$(cat /sys/block/md0/md/mismatch_cnt)
    echo "sectors that differ: $different"
    [ "$different" = 0 ]
    ;;
other)
    # Another target is gone: half of the blocks are now on the disk that has returned, alone.
    umount /tmp/mnt
    blockdev --flushbufs /dev/far/data
    mount /dev/far/data /tmp/mnt
    cmp /tmp/data /tmp/mnt/before
    cmp /tmp/data /tmp/mnt/after
    fio --name=load --filename=/tmp/mnt/load --size=24m --rw=randwrite --bsrange=512-64k \
        --iodepth=16 --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 \
        --verify_only --output=/tmp/fio.out
    grep 'err= 0' /tmp/fio.out
    await_array '[_UU]'
    umount /tmp/mnt
    e2fsck -fn /dev/far/data
    lvm vgchange --config "$lvm" --activate n far
    mdadm --stop $array
    nvme disconnect-all
    ;;
stripe)
    # Its I/O waits for a disk that may come back, for as long as ctrl-loss-tmo says.
    connect "$@"
    mdadm --zero-superblock /dev/nvme0n1 /dev/nvme1n1 /dev/nvme2n1
    lvm vgcreate --config "$lvm" --yes wide /dev/nvme0n1 /dev/nvme1n1 /dev/nvme2n1
    lvm lvcreate --config "$lvm" --name data --stripes 3 --stripesize 64k --extents 100%FREE \
        --wipesignatures n wide
    lvm lvs --config "$lvm" --options lv_name,stripes,devices wide
    ;;
wait)
    # A target is ended and started again meanwhile.
    load /dev/wide/data 24m
    dmesg | grep 'nvme2: Successfully reconnected'
    lvm vgchange --config "$lvm" --activate n wide
    nvme disconnect-all
    ;;
esac
