"""10,000 half-open logins at pscp-serve, while somebody uploads: what they cost.

    PYTHONPATH=tests .venv/bin/python tests/soak_serve.py [CONNECTIONS]

It prints the seconds of an upload alone and among the others, and the memory and the descriptors of
the workers at most, and fails where the upload takes more than twice as long, or memory grows by
more than 512 MiB. The connections come from 250 addresses, and each is made anew when it is ended.

Not here: a thousand of them, in every run (serve/test_serve_logins.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from serve.server import Serving

from pscp.ground.processes import descendants

UPLOAD_BYTES = 32 << 20
MOST_BYTES = 512 << 20
ADDRESSES = 250


async def half_open(port: int, number: int, opened: list[int]) -> None:
    """Hold a connection without a login; make it anew whenever the server ends it."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(f"127.0.1.{number % ADDRESSES + 1}", 0)
            )
            opened[0] += 1
            try:
                while await reader.read(4096):
                    pass
            finally:
                writer.close()
        await asyncio.sleep(1)


async def upload_s(serving: Serving) -> float:
    began_s = time.monotonic()
    connection = await serving.connect()
    async with (
        connection,
        connection.start_sftp_client() as client,
        client.open("big", "wb") as file,
    ):
        for _ in range(UPLOAD_BYTES >> 20):
            await file.write(bytes(1 << 20))
    return time.monotonic() - began_s


def used(serving: Serving) -> tuple[int, int]:
    """The memory of the workers, in bytes, and their descriptors."""
    pids = [each.pid for each in descendants(serving.process.pid)]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE"), sum(
        len(os.listdir(f"/proc/{pid}/fd")) for pid in pids
    )


async def soak(serving: Serving, connections: int) -> bool:
    before_bytes, _ = used(serving)
    alone_s = await upload_s(serving)
    opened = [0]
    held = [asyncio.create_task(half_open(serving.port, n, opened)) for n in range(connections)]
    most_bytes = most_fds = 0
    while opened[0] < connections:
        await asyncio.sleep(0.5)
    among_s = await upload_s(serving)
    for _ in range(10):
        now_bytes, now_fds = used(serving)
        most_bytes, most_fds = max(most_bytes, now_bytes), max(most_fds, now_fds)
        await asyncio.sleep(0.5)
    for each in held:
        each.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    grown_bytes = most_bytes - before_bytes
    print(
        f"{opened[0]} connections; 32 MiB in {alone_s:.2f} s alone, {among_s:.2f} s among them; "
        f"memory +{grown_bytes >> 20} MiB, {most_fds} descriptors"
    )
    return among_s < 2 * alone_s and grown_bytes < MOST_BYTES


def main() -> int:
    connections = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with (
        tempfile.TemporaryDirectory() as folder,
        Serving(Path(folder), "workers = 2\nper-address = 60") as serving,
    ):
        return 0 if asyncio.run(soak(serving, connections)) else 1


if __name__ == "__main__":
    sys.exit(main())
