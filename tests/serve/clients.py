"""Clients that know nothing of pscp-serve, as a test runs them: their words, and the way to alice.

Not here: what they do (test_serve_clients.py, test_serve_resume.py).
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
from pathlib import Path

from conftest import unavailable

from serve.server import Serving

BIG_BYTES = 8 << 20


class Clients:
    """The programs of a client's machine, with alice's key."""

    def __init__(self, serving: Serving, folder: Path) -> None:
        self.serving, self.folder = serving, folder
        key = folder / "key"
        serving.key.write_private_key(str(key))
        key.chmod(0o600)
        self.options = [
            "-oStrictHostKeyChecking=no", f"-oUserKnownHostsFile={folder}/known",
            "-oLogLevel=ERROR",
            "-oIdentitiesOnly=yes", "-oIdentityAgent=none", f"-oIdentityFile={key}",
            f"-oPort={serving.port}", "-oUser=alice", "-F/dev/null",
        ]  # fmt: skip
        self.key = key

    def run(self, *argv: str, text: str = "") -> str:
        """Run a program to its end; return its output."""
        if shutil.which(argv[0]) is None:
            unavailable(f"{argv[0]} is not installed")
        home = {"HOME": str(self.folder)}
        done = subprocess.run(
            argv, input=text.encode(), capture_output=True, timeout=120, check=False,
            env={**os.environ, **home},
        )  # fmt: skip
        output = done.stdout.decode(errors="surrogateescape")
        assert done.returncode == 0, (output, done.stderr)
        return output

    def sftp(self, script: str, *words: str) -> str:
        return self.run("sftp", *self.options, *words, "-b", "-", "127.0.0.1", text=script)

    def scp(self, *words: str) -> str:
        return self.run("scp", *self.options, *words)

    def lftp(self, script: str) -> str:
        ssh = " ".join(["ssh", "-a", "-x", *self.options])
        settings = f'set sftp:connect-program "{ssh}"; set net:max-retries 1; set net:timeout 20'
        return self.run("lftp", "-c", f"{settings}; open sftp://alice:x@127.0.0.1; {script}")

    def rclone(self, *words: str) -> str:
        host = f":sftp,host=127.0.0.1,port={self.serving.port},user=alice,key_file='{self.key}'"
        words = tuple(each.replace("REMOTE", f"{host},shell_type=none") for each in words)
        return self.run("rclone", "--config", "/dev/null", *words)


def random_file(path: Path, size_bytes: int) -> str:
    """Make a file of bytes that are the same in each run; return their SHA-256."""
    data = random.Random(size_bytes).randbytes(size_bytes)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
