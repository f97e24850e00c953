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


def exchange(stream, value):
    """Tells the other end something and hears the same of it."""
    stream.sendall(json.dumps(value).encode() + b"\n")
    line = b""
    while not line.endswith(b"\n"):
        piece = stream.recv(65536)
        assert piece, "the other end is gone"
        line += piece
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
    with meet(address) as stream:
        endpoint.connect(exchange(stream, endpoint.endpoint_info()))
        there = endpoint.register_remote_memory_region(
            "there", exchange(stream, endpoint.mr_info())["memory"]
        )
        if address:
            # Local and remote region, remote and local offset, length.
            assert endpoint.read([(key, there, 0, 0, LENGTH)]).wait() == 0
            assert memory.raw[:LENGTH] == TEXT
            assert endpoint.write([(key, there, LENGTH, 0, LENGTH)]).wait() == 0
        exchange(stream, "done")
    if address is None:
        assert memory.raw[LENGTH:] == TEXT
    endpoint.shutdown()
    print("read and written:", LENGTH)


main()
