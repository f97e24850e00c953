"""A fixture that runs RDMA programs without RDMA hardware. Copy it into your conftest.py."""

import shutil
import subprocess

import pytest


@pytest.fixture
def rdma():
    """Runs a program on the software RDMA adapter and returns what it printed.

    Mistakes in its use of verbs fail the test. `faults` are options of `feroce run`, such as
    ["--loss", "1%", "--seed", "7"].
    """
    feroce = shutil.which("feroce")
    if feroce is None:
        pytest.skip("there is no command feroce here: pip install the wheel of feroce")

    def run(*program, faults=(), timeout=60):
        command = [feroce, "run", "--lint=error", *faults, "--", *map(str, program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
