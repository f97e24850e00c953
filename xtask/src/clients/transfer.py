"""Two ends of Mooncake's transfer engine: the initiator writes to the target and reads from it.

Usage: transfer.py ADDRESS FILE target|initiator

The target writes where it is, and where its memory is, to a file.
"""

import ctypes
import os
import pathlib
import sys
import time

from mooncake.engine import TransferEngine

LENGTH = 1 << 20
TEXT = bytes(i * 7 % 251 for i in range(LENGTH))
DONE = b"done"


def main():
    address, meeting, role = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    engine = TransferEngine()
    assert engine.initialize(address, "P2PHANDSHAKE", "rdma", "feroce0") == 0
    memory = ctypes.create_string_buffer(2 * LENGTH)
    start = ctypes.addressof(memory)
    assert engine.register_memory(start, len(memory)) == 0
    if role == "target":
        draft = meeting.with_suffix(".new")
        draft.write_text(f"{address}:{engine.get_rpc_port()} {start}")
        os.rename(draft, meeting)
        while memory.raw[LENGTH : LENGTH + len(DONE)] != DONE:
            time.sleep(0.01)
        assert memory.raw[:LENGTH] == TEXT
    else:
        while not meeting.exists():
            time.sleep(0.01)
        target, there = meeting.read_text().split()
        there = int(there)
        memory[:LENGTH] = TEXT
        assert engine.transfer_sync_write(target, start, there, LENGTH) == 0
        memory[:LENGTH] = bytes(LENGTH)
        assert engine.transfer_sync_read(target, start, there, LENGTH) == 0
        assert memory.raw[:LENGTH] == TEXT
        memory[: len(DONE)] = DONE
        assert engine.transfer_sync_write(target, start, there + LENGTH, len(DONE)) == 0
    assert engine.unregister_memory(start) == 0


main()
