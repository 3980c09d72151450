"""A pool of the virtual machine that scripts/lab/zfs-vm starts: real OpenZFS, spoken to by ssh.

Both ends of a replication are pools there. One master connection carries every command.

Not here: the tests. Read next: conftest.py.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

HOST = "zfs-vm"
COMMAND_S = 120.0


class Machine:
    """Reached with the ssh_config that zfs-vm prints."""

    host = HOST

    def __init__(self, config: str, folder: Path) -> None:
        path = folder / "ssh_config"
        path.write_text(
            f"{config}\n  ControlMaster auto\n  ControlPath {folder}/master\n  ControlPersist 600\n"
        )
        self.ssh_config = str(path)
        self.ssh = ("ssh", "-F", self.ssh_config, HOST)

    def run(self, script: str) -> str:
        """Runs it with the shell there."""
        done = subprocess.run(
            [*self.ssh, script], capture_output=True, stdin=subprocess.DEVNULL,
            timeout=COMMAND_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{script}: {done.stderr.decode()}")
        return done.stdout.decode()

    def close(self) -> None:
        argv = ["ssh", "-F", self.ssh_config, "-O", "exit", HOST]
        subprocess.run(argv, capture_output=True, check=False)


class VmPool:
    """An empty pool on one of its disks. `user`: who runs zfs there."""

    def __init__(self, machine: Machine, pool: str, disk: str) -> None:
        self.machine, self.pool, self.user = machine, pool, "root"
        machine.run(
            f"zpool destroy {pool} 2>/dev/null; wipefs -qa {disk}; "
            f"zpool create -f -O mountpoint=/{pool} {pool} {disk}"
        )

    @property
    def zfs(self) -> tuple[str, ...]:
        as_user = () if self.user == "root" else ("runuser", "-u", self.user, "--")
        return (*self.machine.ssh, *as_user, "/usr/sbin/zfs")

    def do(self, *words: str) -> str:
        return self.machine.run(shlex.join(["zfs", *words]))

    def destroy(self, *words: str) -> None:
        self.do("destroy", *words)

    def exists(self, name: str) -> bool:
        script = f"zfs list -t all {shlex.quote(name)} >/dev/null 2>&1 && echo yes || true"
        return self.machine.run(script).strip() == "yes"

    def get(self, name: str, *properties: str) -> list[str]:
        words = ("get", "-Hp", "-o", "value", ",".join(properties), name)
        return self.do(*words).splitlines()

    def folder(self, dataset: str) -> Path:
        return Path("/") / dataset

    def write(self, dataset: str, name: str, count: int) -> None:
        self.machine.run(f"head -c {count} /dev/urandom > /{dataset}/{name}")

    def guids(self, dataset: str) -> dict[str, str]:
        words = ("get", "-d", "1", "-t", "snapshot", "-Hp", "-o", "name,value", "guid", dataset)
        rows = (line.split("\t") for line in self.do(*words).splitlines())
        return {name.partition("@")[2]: value for name, value in rows}

    def contents(self, snapshot: str) -> str:
        """Names, modes, times and SHA-256 of everything in it."""
        return self.machine.run(
            f"mkdir -p /mnt/look && mount -t zfs -o ro {shlex.quote(snapshot)} /mnt/look && "
            "cd /mnt/look && find . -printf '%p %y %s %m %T@ %l\\n' | sort && "
            "find . -type f -print0 | sort -z | xargs -0r sha256sum; "
            "status=$?; cd / && umount /mnt/look && exit $status"
        )
