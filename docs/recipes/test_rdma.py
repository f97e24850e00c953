"""Tests that use the fixture of conftest.py. RDMA_PROGRAM is a program that checks its own result."""

import os

import pytest

PROGRAM = os.environ.get("RDMA_PROGRAM", "./rc_write")


def test_there_is_a_device(rdma):
    assert "feroce0" in rdma("ls", "/sys/class/infiniband")


@pytest.mark.parametrize("faults", [[], ["--loss", "1%", "--seed", "7"]])
def test_a_program_survives(rdma, faults):
    rdma(PROGRAM, faults=faults)
