"""What is done to a copy that runs: signals, links that stop, full disks, calls that fail, changes.

A fault is begun before its copy (`around`) or while it runs (`meanwhile`), and mended afterwards.

Not here: the copy (trial.py), and what is allowed to come of it (wild.py).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tree_data import FILE, Made, plant

from pscp.ground.processes import descendants, send

HERE = Path(__file__).parent
CALLS = ("write", "pwrite", "fsync", "rename", "link", "unlink", "mkdir", "open", "fchmod",
         "futimens", "ftruncate")  # fmt: skip
ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR, errno.EMFILE)
SIGNALS = ("kill", "kill the link", "kill an agent", "SIGINT", "SIGTERM", "stop an agent")
AROUND = ("a call fails here", "a call fails there", "what is sent comes late", "full disk")
KINDS = (*SIGNALS, *AROUND, "the source changes")
STOPPED_S, LATE_S = 1.5, 1.0


def library() -> Path | None:
    """Return the library that has calls fail, made in TMPDIR; None without a compiler."""
    made = Path(os.environ["TMPDIR"]) / "failing.so"
    if not made.exists() and shutil.which("cc"):
        argv = ["cc", "-shared", "-fPIC", "-o", str(made), str(HERE / "failing.c"), "-ldl"]
        subprocess.run(argv, check=True)
    return made if made.exists() else None


def possible() -> list[str]:
    """Return the kinds that this machine can have: some need root, and some a compiler."""
    kinds = [kind for kind in KINDS if shutil.which("cc") or not kind.startswith("a call")]
    return [kind for kind in kinds if os.geteuid() == 0 or kind != "full disk"]


def rule(rng: random.Random, folder: bytes) -> dict[str, str]:
    """Draw the environment of a program of which some calls fail."""
    call, number = rng.choice(CALLS), rng.choice(ERRNOS)
    after, count = rng.choice((0, 0, 1, 3, 10)), rng.choice((1, 1, 3, 1000))
    text = f"{call} {number} {after} {count} {os.fsdecode(folder)}"
    return {"SOAK_FAIL": text, "LD_PRELOAD": str(library())}


@contextlib.contextmanager
def around(kind: str, trial: Any, home: Path) -> Iterator[dict[str, str]]:
    """Have a fault in force; yields what is added to the command's environment."""
    far, rng = home / "far" / "environment", trial.rng
    environment: dict[str, str] = {}
    below = rng.choice((trial.there, trial.there, trial.source))
    with contextlib.ExitStack() as stack:
        if kind == "a call fails here":
            environment = rule(rng, below)
        elif kind == "a call fails there":
            lines = [f"export {name}='{value}'" for name, value in rule(rng, below).items()]
            far.write_text("\n".join(lines))
        elif kind == "what is sent comes late":
            folder = stack.enter_context(_late(rng, home / "late"))
            far.write_text(f"SOAK_LATE='{folder}'")
        elif kind == "full disk":
            resize(trial.there, used_bytes(trial.there) + rng.choice((4096, 100_000, 300_000)))
        try:
            yield environment
        finally:
            far.unlink(missing_ok=True)
            if kind == "full disk":
                resize(trial.there, ROOM_BYTES)


@contextlib.contextmanager
def _late(rng: random.Random, folder: Path) -> Iterator[Path]:
    """Hold what a connection sends from some frame on, until the copy is over and a while more."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rule = {"do": "hold", "way": "to", "connections": [rng.randrange(3)], "type": None,
            "contains": "", "always": False, "after": rng.choice((0, 1000, 100_000))}  # fmt: skip
    (folder / "frames.json").write_text(json.dumps([rule]))
    (folder / "calls.json").write_text("[]")
    try:
        yield folder
    finally:
        (folder / "go").touch()


def meanwhile(kind: str, process: subprocess.Popen[bytes], trial: Any, server: Any) -> None:
    """Do it to a command that runs, at a moment that is drawn."""
    wait_for_something(trial, process)
    if process.poll() is not None:
        return
    if kind == "the source changes":
        change(trial)
    elif kind in ("SIGINT", "SIGTERM", "kill"):
        process.send_signal({"kill": signal.SIGKILL}.get(kind) or getattr(signal, kind))
    elif kind == "what is sent comes late":
        time.sleep(LATE_S)
        process.kill()
    elif kind in SIGNALS:
        here = kind == "kill the link"
        found = sorted(descendants(process.pid if here else server.pid), key=lambda each: each.pid)
        if not found:
            return
        victim = trial.rng.choice(found)
        if kind == "stop an agent":
            send(victim.pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            if trial.rng.random() < 0.5:
                process.kill()
            send(victim.pid, signal.SIGCONT)
        else:
            send(victim.pid, signal.SIGKILL)


def wait_for_something(trial: Any, process: subprocess.Popen[bytes]) -> None:
    """Until something lies at the destination, and a moment more; or for some time."""
    begin_s, rng = time.monotonic(), trial.rng
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0.05, 1.5))
        return
    before = looks(trial.there)
    while process.poll() is None and time.monotonic() < begin_s + 4:
        if looks(trial.there) != before:
            break
        time.sleep(0.005)
    time.sleep(rng.choice((0, 0.003, 0.02, 0.1, 0.3)))


def looks(folder: bytes) -> set[tuple[bytes, int, int]]:
    """Return what tells that something has been written below a folder."""
    found = set()
    for top, _, names in os.walk(folder):
        for path in (os.path.join(top, name) for name in names):
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                found.add((path, status.st_size, status.st_mtime_ns))
    return found


def change(trial: Any) -> None:
    """Put another version in the place of a source file, or take one away, or make one."""
    rng = trial.rng
    names = [path for path, node in trial.now.items() if node.kind == FILE and path != b"one"]
    if not names:
        return
    path = rng.choice(names)
    new = Made(FILE, rng.randrange(9), rng.choice((40, 41, 150_000, 400_000)), 0o644, trial.tick())
    if rng.random() < 0.2:
        os.unlink(os.path.join(trial.source, path))
    else:
        beside = os.path.dirname(path) + b"/.being made"
        plant(trial.source, {beside.lstrip(b"/"): new})
        os.rename(os.path.join(trial.source, beside.lstrip(b"/")), os.path.join(trial.source, path))
    trial.note_source()


# --- disks


ROOM_BYTES = 64 << 20


@contextlib.contextmanager
def disk(place: bytes) -> Iterator[None]:
    """Give a folder a small file system of its own, which takes root."""
    argv = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES},mode=755", "none", os.fsdecode(place)]
    subprocess.run(argv, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", os.fsdecode(place)], check=True)


def used_bytes(place: bytes) -> int:
    room = os.statvfs(place)
    return (room.f_blocks - room.f_bfree) * room.f_frsize


def resize(place: bytes, size: int) -> None:
    argv = ["mount", "-o", f"remount,size={size}", os.fsdecode(place)]
    subprocess.run(argv, check=True)
