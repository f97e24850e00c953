"""Two agents of NIXL: the initiator reads from and writes to the memory of the target.

Usage: nixl.py FOLDER target|initiator"""

import os
import sys
import time

import numpy
from nixl_cu12 import nixl_agent, nixl_agent_config

LENGTH = 4 << 20
PATIENCE_S = 60


def until(is_so):
    """Waits until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "the other end is gone"
        time.sleep(0.001)


def give(path, data):
    """Leaves something for the other end, whole."""
    with open(path + ".part", "wb") as file:
        file.write(data)
    os.rename(path + ".part", path)


def take(path):
    until(lambda: os.path.exists(path))
    with open(path, "rb") as file:
        return file.read()


def main():
    folder, role = sys.argv[1:]
    text = numpy.arange(LENGTH, dtype=numpy.uint8)
    memory = text.copy() if role == "target" else numpy.zeros(LENGTH, numpy.uint8)
    agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
    at = memory.ctypes.data
    agent.register_memory(agent.get_reg_descs([(at, LENGTH, 0, "")], "DRAM"))
    own = agent.get_xfer_descs([(at, LENGTH, 0)], "DRAM")
    if role == "target":
        give(folder + "/memory", agent.get_serialized_descs(own))
        give(folder + "/agent", agent.get_agent_metadata())
        until(lambda: agent.check_remote_xfer_done("initiator", b"written"))
        assert (memory == 7).all(), "written wrongly"
        return
    peer = agent.add_remote_agent(take(folder + "/agent"))
    remote = agent.deserialize_descs(take(folder + "/memory"))

    def transfer(what, notice):
        handle = agent.initialize_xfer(what, own, remote, peer, notice)
        agent.transfer(handle)
        until(lambda: agent.check_xfer_state(handle) != "PROC")
        assert agent.check_xfer_state(handle) == "DONE"
        agent.release_xfer_handle(handle)

    transfer("READ", b"read")
    assert (memory == text).all(), "read wrongly"
    memory[:] = 7
    transfer("WRITE", b"written")


main()
