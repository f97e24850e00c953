#!/bin/sh
# A Ceph cluster of one monitor and one storage daemon, all of whose messages go over RDMA: an object
# is written and read back, and many more are written.
#
# Usage: ceph.sh FEROCE FOLDER
set -e
feroce=$1 folder=$2
id=7a1c2c2e-5b0e-4c1e-9d6e-000000000001
disk=7a1c2c2e-5b0e-4c1e-9d6e-000000000002
rm -rf "${folder:?}/cluster"
mkdir -p "$folder/cluster/osd"
cd "$folder/cluster"
cat > ceph.conf <<END
[global]
fsid = $id
mon host = [v2:127.123.0.10:3300]
auth cluster required = none
auth service required = none
auth client required = none
ms type = async+rdma
ms async rdma device name = feroce0
run dir = $PWD
log file = $PWD/\$name.log
pid file =
mon data = $PWD/mon
mon data avail crit = 1
mon data avail warn = 1
mon allow pool size one = true
osd data = $PWD/osd
osd objectstore = memstore
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
END
export CEPH_CONF="$PWD/ceph.conf"
on() {
    address=$1
    shift
    timeout 120 "$feroce" run --address "$address" -- "$@" 2>> errors
}
# The same for daemons: the process that is started in the background is the one to end.
serve() {
    address=$1
    shift
    exec timeout 300 "$feroce" run --address "$address" -- "$@" 2>> errors
}
ask() {
    on 127.123.0.11 "$@"
}
end() {
    result=$?
    # shellcheck disable=SC2046
    kill $(cat pids) 2> /dev/null || :
    wait
    [ $result = 0 ] || tail -n 20 errors
}
: > pids
trap end EXIT
monmaptool --create --fsid $id --addv a '[v2:127.123.0.10:3300]' monmap > /dev/null
ceph-mon --mkfs -i a --monmap monmap
serve 127.123.0.10 ceph-mon -i a -f &
echo $! >> pids
ask ceph osd new $disk > /dev/null
on 127.123.0.12 ceph-osd -i 0 --mkfs --osd-uuid $disk
serve 127.123.0.12 ceph-osd -i 0 -f &
echo $! >> pids
ask ceph osd crush add 0 1 host=here root=default
until ask ceph osd stat | grep -q '1 up'; do
    sleep 0.2
done
ask ceph osd pool create data 8 > /dev/null
head -c 3000000 /dev/urandom > written
ask rados -p data put object written
ask rados -p data get object read
cmp written read
ask rados -p data bench 3 write -b 65536 -t 4 > bench
grep 'Total writes made' bench
