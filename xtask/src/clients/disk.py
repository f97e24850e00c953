"""The initiator of PyPI's nvmeof on a disk of feroce: writes, flushes and reads."""

import sys

import nvmeof

LENGTH = 64 << 10
TEXT = bytes(i * 7 % 251 for i in range(LENGTH))


def main():
    address, name = sys.argv[1:]
    with nvmeof.Controller.connect(address, name) as controller:
        disk = controller.identify_namespace(1)
        blocks = LENGTH // 512
        with controller.allocate(LENGTH) as source, controller.allocate(LENGTH) as target:
            source.write(TEXT)
            disk.write(source, 8, blocks)
            disk.flush()
            disk.read(target, 8, blocks)
            assert target.read() == TEXT, "what was read is not what was written"
            disk.read(target, 0, 8)
            assert not any(target.read()[:4096]), "another block was written"


main()
