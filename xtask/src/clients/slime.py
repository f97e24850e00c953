"""Two ends of DLSlime: the one that is given an address reads from and writes to the other."""

import ctypes
import json
import socket
import sys
import time

import dlslime

PORT = 18516
LENGTH = 1 << 20
TEXT = bytes(i * 7 % 251 for i in range(LENGTH))


def exchange(stream, lines, value):
    """Tells the other end something, in a line, and hears the same of it, which may come early:
    a file for both directions would forget what it has read ahead when it is written to."""
    stream.sendall(json.dumps(value).encode() + b"\n")
    line = lines.readline()
    assert line, "the other end is gone"
    return json.loads(line)


def meet(address):
    """Finds the other end, which may not be there yet."""
    if address is None:
        with socket.create_server(("", PORT)) as server:
            return server.accept()[0]
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            time.sleep(0.05)


def main():
    address = sys.argv[1] if len(sys.argv) > 1 else None
    context = dlslime.RDMAContext()
    assert context.init("feroce0") == 0
    endpoint = dlslime.RDMAEndpoint(context)
    memory = ctypes.create_string_buffer(TEXT if address is None else 2 * LENGTH, 2 * LENGTH)
    key = endpoint.register_memory_region("memory", ctypes.addressof(memory), 0, 2 * LENGTH)
    with meet(address) as stream, stream.makefile("r") as lines:
        endpoint.connect(exchange(stream, lines, endpoint.endpoint_info()))
        there = endpoint.register_remote_memory_region(
            "there", exchange(stream, lines, endpoint.mr_info())["memory"]
        )
        if address:
            # Local and remote region, remote and local offset, length.
            assert endpoint.read([(key, there, 0, 0, LENGTH)]).wait() == 0
            assert memory.raw[:LENGTH] == TEXT
            assert endpoint.write([(key, there, LENGTH, 0, LENGTH)]).wait() == 0
        exchange(stream, lines, "done")
    if address is None:
        assert memory.raw[LENGTH:] == TEXT
    endpoint.shutdown()
    print("read and written:", LENGTH)


main()
