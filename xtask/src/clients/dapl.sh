#!/bin/sh
# Two ends of dtest with each provider of uDAPL given, in a network namespace of their own: the
# providers want an interface that is not loopback.
#
# Usage: dapl.sh FEROCE FOLDER PROVIDER...
set -e
feroce=$1 folder=$2
shift 2
ip link set lo up
ip link add dapl0 type veth peer name dapl1
ip address add 10.123.0.1/24 dev dapl0
ip link set dapl0 up
ip link set dapl1 up
cat > "$folder/dat.conf" <<END
cma u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "dapl0 0" ""
scm u2.0 nonthreadsafe default libdaploscm.so.2 dapl.2.0 "feroce0 1" ""
ucm u2.0 nonthreadsafe default libdaploucm.so.2 dapl.2.0 "feroce0 1" ""
END
export DAT_OVERRIDE="$folder/dat.conf" DAPL_SCM_NETDEV=dapl0
run() {
    timeout 60 "$feroce" run -- dtest -P "$@" -b 65536
}
for provider in "$@"; do
    : > "$folder/server"
    run "$provider" > "$folder/server" 2>&1 &
    # It says that it waits when it can be connected to, or a little earlier, if it tells its client
    # first by TCP how to do that.
    until grep -q 'aiting' "$folder/server" &&
        { [ "$provider" = cma ] || ss --listening --tcp --numeric | grep -q :15828; }; do
        kill -0 $! || { cat "$folder/server"; exit 1; }
        sleep 0.1
    done
    run "$provider" -h 10.123.0.1 > "$folder/client" 2>&1 || { cat "$folder/client"; exit 1; }
    wait $! || { cat "$folder/server"; exit 1; }
    grep 'DAPL Test Complete. PASSED' "$folder/client" "$folder/server" | wc -l | grep -qx 2
    echo "$provider"
done
