"""Every command of pscp, ended by a signal at a moment of its life.

An end is wrong that takes more than 20 s, says a traceback, or leaves a process below the command
or a file in a temporary folder. Not here: the interpreter's own start, which now and then loses a
SIGINT ("Exception ignored in: <function _get_module_lock.<locals>.cb").
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pscp.ground.processes import Process, descendants, living, send

# On a busy machine; what an end must not wait for takes 30 s and more.
SOON_S, GONE_S, PATIENCE_S = 20.0, 20.0, 60.0
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
BIN = Path(sys.executable).parent


def commands(home: Path, ssh_config: str, host: str) -> dict[str, tuple[list[str], float]]:
    """Each command line, and how long it lives, about, in seconds."""
    ways = ["-F", ssh_config, "-B", "--no-resume", "-c", "3"]
    source, far = f"{home}/source/.", f"{host}:{home}/source/."
    limit = ["-l", "160000"]
    pipe = [str(BIN / "pscp-pipe"), "-F", ssh_config, "-B", *limit]
    copy = [str(BIN / "pscp"), "-r", *ways, *limit]
    return {
        "push": ([*copy, source, f"{host}:{home}/pushed"], 3.0),
        "pull": ([*copy, far, f"{home}/pulled"], 3.0),
        "push -c auto": ([str(BIN / "pscp"), "-ra", *ways[:3], source, f"{host}:{home}/auto"], 2.0),
        "push sftp": ([*copy, "--remote", "sftp", source, f"{host}:{home}/sftp"], 3.0),
        "pull sftp": ([*copy, "--remote", "sftp", far, f"{home}/from-sftp"], 3.0),
        "push asyncssh": (
            [*copy, "--transport", "asyncssh", source, f"{host}:{home}/asyncssh"], 4.0,
        ),
        "pull paramiko": ([*copy, "--transport", "paramiko", far, f"{home}/paramiko"], 4.0),
        "pipe": ([*pipe, "--producer", "cat /dev/zero", host, "cat >/dev/null"], 3.0),
        "pipe from": ([*pipe, "--from", host, "cat /dev/zero"], 3.0),
        "to file": ([str(BIN / "pscp"), *ways[:3], "-", f"{host}:{home}/file"], 2.0),
        "measure": ([str(BIN / "pscp"), "--measure", *ways[:3], host], 5.0),
        "zfs": (
            [str(BIN / "pscp-zfs"), *ways[:3], "--zfs-command", f"{home}/zfs",
             "--far-zfs-command", f"{home}/zfs", "tank/a", f"{host}:backup/a"],
            2.0,
        ),
    }  # fmt: skip


def prepare(home: Path) -> None:
    for name in ("source", "tmp", "state", "run"):
        (home / name).mkdir()
    (home / "run").chmod(0o700)
    for number in range(400):
        (home / "source" / f"{number}").write_bytes(os.urandom(3000))
    (home / "source" / "big").write_bytes(40 * os.urandom(1 << 20))
    zfs = home / "zfs"  # one that answers no question: the command ends by the signal alone
    zfs.write_text("#!/bin/sh\nexec sleep 1000\n")
    zfs.chmod(0o755)


def environment(home: Path) -> dict[str, str]:
    """Folders of its own for whatever a command may leave."""
    return {
        "TMPDIR": f"{home}/tmp", "XDG_STATE_HOME": f"{home}/state",
        "XDG_RUNTIME_DIR": f"{home}/run",
    }  # fmt: skip


def listens(pid: int) -> bool:
    """Has the program come to its first line, which is to catch signals (cli/start.py)?"""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return bool(int(status["SigCgt"], 16) & 1 << signal.SIGTERM - 1)


class Ending:
    """One command, ended once."""

    def __init__(self, home: Path, argv: list[str], kind: signal.Signals, after_s: float) -> None:
        self._kind, self._after_s = kind, after_s
        self._home, self._argv = home, argv

    def run(self) -> str:
        """What was wrong with its end, or nothing."""
        with open(self._home / "said", "wb") as said:
            reads, writes = os.pipe()  # an input that never ends
            process = subprocess.Popen(
                self._argv, stdin=reads, stdout=subprocess.DEVNULL, stderr=said,
                start_new_session=True,
            )  # fmt: skip
            os.close(reads)
        try:
            self._wait_for_the_moment(process)
            below = descendants(process.pid)
            process.send_signal(self._kind)
            problem = self._ended(process, below)
        finally:
            os.close(writes)
        return problem

    def _wait_for_the_moment(self, process: subprocess.Popen[bytes]) -> None:
        while not listens(process.pid) and process.poll() is None:
            time.sleep(0.002)
        until_s = time.monotonic() + self._after_s
        while time.monotonic() < until_s and process.poll() is None:
            time.sleep(0.002)

    def _ended(self, process: subprocess.Popen[bytes], below: set[Process]) -> str:
        begun_s = time.monotonic()
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            below |= descendants(process.pid)
            for each in below:
                send(each.pid, signal.SIGKILL)
            process.kill()
            process.wait()
            return "it never ended"
        took_s = time.monotonic() - begun_s
        said = (self._home / "said").read_text(errors="replace")
        problems = []
        if took_s > SOON_S:
            problems.append(f"it took {took_s:.1f} s")
        if "Traceback" in said or "Exception ignored" in said:
            problems.append("a traceback")
        if code not in (CODES[self._kind], -self._kind, 0):
            problems.append(f"exit code {code}")
        problems += self._left(below)
        return f"{', '.join(problems)}; it said: {said}" if problems else ""

    def _left(self, below: set[Process]) -> list[str]:
        until_s = time.monotonic() + GONE_S
        while (left := below & living().keys()) and time.monotonic() < until_s:
            time.sleep(0.01)
        for each in left:
            send(each.pid, signal.SIGKILL)
        found = [f"process {each.pid} was left" for each in left]
        for folder in (self._home / "tmp", self._home / "run" / f"pscp-{os.getuid()}"):
            for path in folder.iterdir() if folder.exists() else ():
                if path.name.startswith("pscp-") and (path / "lanes").exists():
                    continue  # a far end's, which ends with its command
                found.append(f"{path} was left")
                subprocess.run(["rm", "-rf", str(path)], check=True)
        return found
