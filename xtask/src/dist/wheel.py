"""Packs a directory of `cargo xtask dist` as a wheel: the command, the library, and a small package
that runs the command as `python -m feroce`.

Usage: wheel.py FOLDER VERSION PLATFORM README OUT
"""

import base64
import hashlib
import pathlib
import sys
import zipfile

COMMAND = '''\
"""RDMA without RDMA hardware: where the command of this package is."""

import os
import sysconfig

__version__ = "{version}"


def command():
    """The path of the command `feroce` of this environment."""
    for scheme in (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")):
        path = os.path.join(sysconfig.get_path("scripts", scheme), "feroce")
        if os.path.exists(path):
            return path
    raise FileNotFoundError("the command feroce is not beside this Python: install the wheel again")
'''

MAIN = '''\
"""`python -m feroce run -- PROGRAM` is `feroce run -- PROGRAM`."""

import os
import sys

from . import command

path = command()
os.execv(path, [path, *sys.argv[1:]])
'''

METADATA = """\
Metadata-Version: 2.1
Name: feroce
Version: {version}
Summary: RDMA without RDMA hardware: a software adapter in user space
License: MIT OR Apache-2.0
Keywords: rdma,roce,infiniband,verbs,testing
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: System :: Networking
Requires-Python: >=3.10
Description-Content-Type: text/markdown

{readme}"""


def main(folder, version, platform, readme, out):
    folder, out = pathlib.Path(folder), pathlib.Path(out)
    tag = f"py3-none-{platform}"
    name = f"feroce-{version}"
    info, data = f"{name}.dist-info", f"{name}.data"
    readme = pathlib.Path(readme).read_text(encoding="utf-8")
    wheel = f"Wheel-Version: 1.0\nGenerator: feroce-xtask\nRoot-Is-Purelib: false\nTag: {tag}\n"
    # What is under `scripts` goes to `bin`, and what is under `data` to the root of an environment,
    # where the command looks for the library.
    files = {
        "feroce/__init__.py": COMMAND.format(version=version).encode(),
        "feroce/__main__.py": MAIN.encode(),
        f"{data}/scripts/feroce": (folder / "bin/feroce").read_bytes(),
        f"{data}/data/lib/feroce/libferoce.so": (folder / "lib/feroce/libferoce.so").read_bytes(),
        f"{info}/METADATA": METADATA.format(version=version, readme=readme).encode(),
        f"{info}/WHEEL": wheel.encode(),
    }
    for license in ("LICENSE-MIT", "LICENSE-APACHE"):
        text = (folder / "share/doc/feroce" / license).read_bytes()
        files[f"{info}/licenses/{license}"] = text
    record = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(content)}")
    record.append(f"{info}/RECORD,,")
    files[f"{info}/RECORD"] = "\n".join(record).encode() + b"\n"
    target = out / f"{name}-{tag}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            # The same input makes the same file, whenever that is.
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            mode = 0o755 if path.endswith(("/scripts/feroce", ".so")) else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    print(target)


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    main(*sys.argv[1:])
