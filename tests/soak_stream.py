"""5 GiB through a stream while a lane dies every 2 seconds, both ways: python tests/soak_stream.py.

Takes some minutes, so no test run does it; needs sshd. Prints what each end's memory came to, and
ends with exit code 1 where a byte is wrong or that was more than the window and 60 MiB.
SIZE_MIB, LANES and WINDOW_MIB in the environment change what is moved.

Not here: what every run checks (faults/test_streams_lost.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from servers.private import SshdServer

from pscp.ground.processes import descendants

MIB = 1 << 20
SIZE_MIB, LANES = int(os.environ.get("SIZE_MIB", 5120)), os.environ.get("LANES", "8")
WINDOW_MIB = int(os.environ.get("WINDOW_MIB", 256))
LIMIT_KIB = (WINDOW_MIB + 60) * 1024
KILL_S, LOOK_S = 2.0, 0.1
PROGRAM = "import sys; from pscp.cli.pipe import main; sys.exit(main())"
# The same bytes each time; hashed where they are made and where they arrive.
MAKE = f"""
import random, sys
from hashlib import sha256
made, hasher = random.Random(5), sha256()
for _ in range({SIZE_MIB}):
    block = made.randbytes(1 << 20)
    hasher.update(block)
    sys.stdout.buffer.write(block)
sys.stdout.buffer.flush()
print(hasher.hexdigest(), file=sys.stderr)
"""


class Watch(threading.Thread):
    """Kills an ssh now and then, and notes how much memory each process came to."""

    def __init__(self, client: int, server: int) -> None:
        super().__init__(daemon=True)
        self.killed, self.peaks = 0, {"here": 0, "there": 0}
        self._client, self._server, self._ended = client, server, threading.Event()

    def run(self) -> None:
        next_s = time.monotonic() + KILL_S
        while not self._ended.wait(LOOK_S):
            self._note("here", self._client)
            for process in descendants(self._server):
                if b"parts=zlib" in read(f"/proc/{process.pid}/cmdline"):
                    self._note("there", process.pid)
            if time.monotonic() >= next_s:
                next_s += KILL_S
                self._kill()

    def _note(self, end: str, pid: int) -> None:
        for line in read(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"VmHWM"):
                self.peaks[end] = max(self.peaks[end], int(line.split()[1]))

    def _kill(self) -> None:
        found = [each.pid for each in descendants(self._client)]
        lanes = [pid for pid in found if read(f"/proc/{pid}/comm") == b"ssh\n"]
        if lanes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(lanes), signal.SIGKILL)
                self.killed += 1

    def end(self) -> None:
        self._ended.set()
        self.join()


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def moved(server: SshdServer, is_push: bool) -> bool:
    make = [sys.executable, "-c", MAKE]
    window = ["--window", f"{WINDOW_MIB}M", "-c", LANES, "-F", server.ssh_config, "-B"]
    pipe, begun_s = subprocess.PIPE, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if is_push:
            with subprocess.Popen(make, stdout=pipe, stderr=pipe) as producer:
                argv = [sys.executable, "-c", PROGRAM, *window, server.host, "sha256sum"]
                client = subprocess.Popen(argv, stdin=producer.stdout, stdout=pipe)
                assert producer.stdout and producer.stderr
                producer.stdout.close()
                watch = Watch(client.pid, server.pid)
                watch.start()
                arrived = client.communicate()[0].split()[0].decode()
                sent = producer.stderr.read().decode().strip()
        else:
            script = Path(folder, "make.py")
            script.write_text(MAKE)
            far = f"{sys.executable} {script} 2> {folder}/sent"
            argv = [sys.executable, "-c", PROGRAM, *window, "--from", server.host, far]
            client = subprocess.Popen(argv, stdout=pipe)
            watch = Watch(client.pid, server.pid)
            watch.start()
            hasher = hashlib.sha256()
            assert client.stdout
            while data := client.stdout.read(MIB):
                hasher.update(data)
            client.wait()
            arrived, sent = hasher.hexdigest(), Path(folder, "sent").read_text().strip()
    watch.end()
    took_s = time.monotonic() - begun_s
    peaks = ", ".join(f"{end} {kib / 1024:.0f} MiB" for end, kib in watch.peaks.items())
    is_same = arrived == sent and client.returncode == 0
    print(
        f"{'push' if is_push else 'pull'}: {SIZE_MIB} MiB in {took_s:.0f} s, {watch.killed} lanes"
        f" killed, {'the same SHA-256' if is_same else 'NOT THE SAME'}; peak {peaks}"
        f" (at most {LIMIT_KIB // 1024})",
        flush=True,
    )
    return is_same and max(watch.peaks.values()) <= LIMIT_KIB


def main() -> int:
    with tempfile.TemporaryDirectory() as state, SshdServer() as server:
        os.environ["XDG_STATE_HOME"] = state
        return int(not all([moved(server, is_push) for is_push in (True, False)]))


if __name__ == "__main__":
    sys.exit(main())
