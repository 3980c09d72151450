"""Servers for copies that are drawn, in a home folder of their own, outside of pytest as well.

Not here: what is copied (trial.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from servers.private import SshdServer

LATE = Path(__file__).parents[1] / "faults" / "far_end.py"
QUICK_LOGINS = ("KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org",)


@contextlib.contextmanager
def own_home() -> Iterator[Path]:
    """A folder that is home, state folder and TMPDIR of this process and what it starts."""
    with tempfile.TemporaryDirectory(prefix="pscp-soak-") as name:
        home, before = Path(name), dict(os.environ)
        for folder in ("tmp", "state", "far"):
            (home / folder).mkdir()
        (home / "run").mkdir(mode=0o700)
        os.environ |= {"HOME": name, "TMPDIR": f"{name}/tmp", "XDG_RUNTIME_DIR": f"{name}/run"}
        os.environ |= {f"XDG_{each}_HOME": f"{name}/state" for each in ("STATE", "CONFIG", "CACHE")}
        os.environ.pop("SSH_AUTH_SOCK", None)
        os.umask(0o022)
        tempfile.tempdir = None
        try:
            yield home
        finally:
            tempfile.tempdir = None
            os.environ.clear()
            os.environ.update(before)


@contextlib.contextmanager
def sshd(home: Path) -> Iterator[SshdServer]:
    """A private sshd; what its agents are run with comes from far/environment, if it is there."""
    script = home / "far" / "python3"
    extra = home / "far" / "environment"
    late = f'exec "{sys.executable}" -I -S "{LATE}" "$SOAK_LATE" "{sys.executable}" "$@"'
    lines = (f'[ -f "{extra}" ] && . "{extra}"', f'[ -n "$SOAK_LATE" ] && {late}')
    script.write_text("\n".join(("#!/bin/sh", *lines, f'exec "{sys.executable}" "$@"\n')))
    script.chmod(0o755)
    path = f"{home}/far:/usr/local/bin:/usr/bin:/bin"
    environment = {"HOME": str(home / "far"), "PATH": path, "TMPDIR": str(home / "tmp")}
    with SshdServer(QUICK_LOGINS, environment=environment) as server:
        config = Path(server.ssh_config)
        names = " ".join([server.host, *(f"{server.host}-{number}" for number in (2, 3))])
        config.write_text(config.read_text().replace(f"Host {server.host}\n", f"Host {names}\n"))
        yield server
