"""Real ZFS without a kernel module: a zfs-fuse of our own, unseen by the rest of the machine.

zfs-fuse knows one path for its socket and one for its lock, so each daemon gets a mount namespace
with a /run of its own; what it mounts is seen through /proc/PID/root. Two of them are two ends.

Not here: the tests. Read next: standin.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from compare import tree_digest
from conftest import unavailable

READY_S = 60.0
POOL_BYTES = 512 * 1024 * 1024  # sparse
POOL_FOLDER = "/run/pools"  # within the namespace

_START = """
set -e
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs tmpfs /etc/zfs
mount -t tmpfs tmpfs /var/lib/zfs
mkdir -p /run/zfs /run/lock /run/pools
exec zfs-fuse --no-daemon --no-kstat-mount --max-arc-size 32
"""


class Daemon:
    """A running zfs-fuse with one empty pool. `zfs` is the command that speaks to it."""

    def __init__(self, folder: Path, pool: str) -> None:
        require()
        self.pool = pool
        with open(folder / f"{pool}.log", "wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "sh", "-c", _START],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait()
            image = folder / f"{pool}.img"
            with open(image, "wb") as file:
                file.truncate(POOL_BYTES)
            at = f"mountpoint={POOL_FOLDER}/{pool}"
            self.run([*self._inside, "zpool", "create", "-O", at, pool, str(image)])
        except BaseException:
            self.close()
            raise

    @property
    def _inside(self) -> tuple[str, ...]:
        return ("nsenter", "--mount", "--target", str(self._process.pid))

    @property
    def zfs(self) -> tuple[str, ...]:
        return (*self._inside, shutil.which("zfs") or "zfs")  # in no PATH of a session

    def _wait(self) -> None:
        deadline_s = time.monotonic() + READY_S
        while subprocess.run([*self.zfs, "list"], capture_output=True, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError("zfs-fuse did not start")
            time.sleep(0.02)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what tests do with it

    def run(self, argv: Sequence[str]) -> str:
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise RuntimeError(f"{list(argv)}: {done.stderr.decode()}")
        return done.stdout.decode()

    def do(self, *words: str) -> str:
        return self.run([*self.zfs, *words])

    def destroy(self, *words: str) -> None:
        """It is busy until the kernel has let go of the mount, which zfs-fuse does not await."""
        deadline_s = time.monotonic() + READY_S
        while True:
            try:
                self.do("destroy", *words)
                return
            except RuntimeError as error:
                if "busy" not in str(error) or time.monotonic() > deadline_s:
                    raise
            time.sleep(0.02)

    def exists(self, name: str) -> bool:
        argv = [*self.zfs, "get", "-Hp", "guid", name]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    def folder(self, dataset: str) -> Path:
        """Where it is mounted, as it is seen from here."""
        return Path(f"/proc/{self._process.pid}/root{POOL_FOLDER}") / dataset

    def write(self, dataset: str, name: str, count: int) -> None:
        (self.folder(dataset) / name).write_bytes(os.urandom(count))

    def guids(self, dataset: str) -> dict[str, str]:
        """Of its snapshots, by what follows the "@", oldest first."""
        text = self.do("get", "-r", "-Hp", "-o", "name,value", "guid", dataset)
        rows = (line.split("\t") for line in text.splitlines())
        return {n.partition("@")[2]: v for n, v in rows if n.startswith(f"{dataset}@")}

    def contents(self, snapshot: str) -> dict[bytes, dict[str, object]]:
        """Every name and byte in a snapshot; zfs-fuse has no .zfs, so a clone shows it."""
        clone = f"{self.pool}/clone-{os.urandom(4).hex()}"
        self.do("clone", snapshot, clone)
        try:
            return tree_digest(self.folder(clone), modes=True, times=True)
        finally:
            self.destroy(clone)


def require() -> None:
    for program in ("zfs-fuse", "zfs", "zpool", "unshare", "nsenter"):
        if shutil.which(program) is None:
            unavailable(f"{program} is not installed")
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        unavailable("zfs-fuse needs root and /dev/fuse")
