"""Migrates a running machine from one QEMU to another over RDMA, and checks that it runs on: over
RoCEv2, and then over iWARP.

Usage: qemu.py FEROCE
"""

import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

FEROCE = sys.argv[1]
ADDRESS = "127.123.0.3"
PORT = 7499
LIMIT_S = 120

# The boot sector writes a counter to the port of the debug console for ever: a machine that runs.
BOOT = bytes([0xFE, 0xC0, 0xE6, 0xE9, 0xEB, 0xFA]).ljust(510, b"\0") + b"\x55\xaa"


class Machine:
    """A QEMU with its monitor."""

    def __init__(self, transport, folder, name, *options):
        self.monitor_path = str(folder / name)
        self.console = folder / f"{name}.console"
        disk = folder / "disk"
        disk.write_bytes(BOOT)
        self.process = subprocess.Popen(
            [FEROCE, "run", "--transport", transport, "--address", ADDRESS, "--"]
            + ["qemu-system-x86_64"]
            + ["-machine", "pc,accel=tcg", "-m", "64", "-nodefaults", "-display", "none"]
            + ["-drive", f"file={disk},format=raw,if=floppy,readonly=on"]
            + ["-debugcon", f"file:{self.console}"]
            + ["-qmp", f"unix:{self.monitor_path},server=on,wait=off", *options]
        )
        self.monitor = self.connect()
        self.read()
        self.ask("qmp_capabilities")

    def connect(self):
        while self.process.poll() is None:
            monitor = socket.socket(socket.AF_UNIX)
            try:
                monitor.connect(self.monitor_path)
                return monitor.makefile("rw")
            except OSError:
                time.sleep(0.1)
        sys.exit("QEMU did not start")

    def read(self):
        return json.loads(self.monitor.readline())

    def ask(self, command, **arguments):
        self.monitor.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.monitor.flush()
        while True:
            answer = self.read()
            if "error" in answer:
                sys.exit(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]

    def written(self):
        return self.console.stat().st_size

    def runs(self):
        """Waits until the machine has written something more."""
        before = self.written()
        while self.written() == before:
            time.sleep(0.05)

    def quit(self):
        self.ask("quit")
        assert self.process.wait() == 0


def listens():
    """Whether a TCP connection to the port can be made: over iWARP it is one of TCP."""
    with socket.socket() as probe:
        return probe.connect_ex((ADDRESS, PORT)) == 0


def migrate(transport):
    with tempfile.TemporaryDirectory() as folder:
        uri = f"rdma:{ADDRESS}:{PORT}"
        folder = pathlib.Path(folder)
        target = Machine(transport, folder, "target", "-incoming", uri)
        assert listens() == (transport == "iwarp")
        source = Machine(transport, folder, "source")
        source.runs()
        source.ask("migrate", uri=uri)
        end = time.monotonic() + LIMIT_S
        while (state := source.ask("query-migrate"))["status"] != "completed":
            if state["status"] == "failed" or time.monotonic() > end:
                sys.exit(f"the migration: {state}")
            time.sleep(0.1)
        while target.ask("query-status")["status"] != "running":
            time.sleep(0.1)
        target.runs()
        transferred = state["ram"]["transferred"]
        source.quit()
        target.quit()
        print(f"{transport}: a running machine moved, with {transferred} bytes of memory sent")


for transport in ["roce", "iwarp"]:
    migrate(transport)
