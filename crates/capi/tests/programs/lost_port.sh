# Lets another user take the port of a listener while portd is started again, in namespaces of its
# own. Arguments: the command feroce, and the program that listens.
set -eu
feroce=$1 listener=$2
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ip link set lo up

# Waits until a file has a line with these words.
await() {
    until grep -qs "$2" "$1"; do
        sleep 0.02
    done
}

as() {
    user=$1
    shift
    exec setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
}

portd() {
    rm -f portd.txt
    "$feroce" portd --all-users > portd.txt 2>&1 &
    portd=$!
    await portd.txt .
}

portd
(FEROCE_SEED=7 as 1234 "$listener" 127.0.0.1 7001) > listener.txt 2>&1 &
told=$!
await listener.txt listening
kill -STOP "$told"
kill -KILL "$portd"
wait "$portd" || true
# What the first portd has written down keeps the port for its user.
rm -r /dev/shm/feroce-portd-0
portd
(FEROCE_SEED=8 as 65534 "$feroce" rping -s -P -p 7001 -a 127.0.0.1) > other.txt 2>&1 &
other=$!
await other.txt listening
kill -CONT "$told"
status=0
wait "$told" || status=$?
cat listener.txt
kill "$other" "$portd"
wait "$other" "$portd" || true
exit $status
