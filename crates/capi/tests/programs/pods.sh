# Runs the server and the client of two pods, in two network namespaces with an address each.
# Arguments: the name of the server, its command line, and that of the client.
set -eu
name=$1 server=$2 client=$3

# An unprivileged process of user 1000 on the software adapter, as in the image.
pod() {
    exec setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all --bounding-set=-all \
        --no-new-privs feroce run -- "$@"
}

mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs tmpfs /run
ip netns add client
ip link add eth0 type veth peer name eth0 netns client
ip address add 10.244.0.2/24 dev eth0
ip -n client address add 10.244.0.3/24 dev eth0
for up in lo eth0; do
    ip link set "$up" up
    ip -n client link set "$up" up
done
# The kernel says a moment later that the link works.
until ip -br link show eth0 | grep -q " UP " && ip -n client -br link show eth0 | grep -q " UP "; do
    sleep 0.02
done
echo "10.244.0.2 $name" > hosts
mount --bind hosts /etc/hosts

# A pod without a command has the entrypoint of the image, and these arguments.
(pod $server) > server.txt 2>&1 &
until ss -Hltn "sport = 18515" | grep -q .; do
    sleep 0.02
done
nsenter --net=/run/netns/client setpriv --reuid 1000 --regid 1000 --clear-groups \
    --inh-caps=-all --bounding-set=-all --no-new-privs feroce run -- $client
wait
