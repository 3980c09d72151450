"""pscp-run, watched while it removes its sources: main() with FOLDER STEP_S WORDS... in sys.argv.

Whenever a file of FOLDER/here is about to be removed, a line of FOLDER/removed tells its name and
whether it was finished and lay, byte for byte, at both destinations in that very moment. The clock
of the process is STEP_S seconds off, as if somebody had set it, and a lost connection is tried
again soon.

Not here: what the files have in them, and when they are finished (night.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path


def content(name: bytes, size: int) -> bytes:
    """The bytes of a file of this name, as far as they have come."""
    return hashlib.shake_128(name).digest(size)


def watch(folder: Path) -> Callable[[str, tuple[object, ...]], None]:
    """Return an audit hook."""
    here = os.path.realpath(folder / "here").encode()
    ends = [os.fsencode(folder / end / "vault") for end in ("one", "two")]

    def is_everywhere(name: bytes) -> bool:
        try:
            size = int((folder / "finished" / os.fsdecode(name)).read_text())
            paths = [os.path.join(place, name) for place in (here, *ends)]
            return {Path(os.fsdecode(path)).read_bytes() for path in paths} == {content(name, size)}
        except OSError:
            return False

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.remove":
            removed, parent = arguments
            assert isinstance(removed, str | bytes | os.PathLike) and isinstance(parent, int)
            above = b"" if parent == -1 else os.readlink(b"/proc/self/fd/%d" % parent)
            place, name = os.path.split(os.path.join(above, os.fsencode(removed)))
            if place == here and not name.endswith(b".pscp-part"):  # its own mark of the source
                with open(folder / "removed", "a") as told:
                    told.write(json.dumps([os.fsdecode(name), is_everywhere(name)]) + "\n")

    return hear


def main() -> None:
    folder, step_s = Path(sys.argv[1]), float(sys.argv[2])
    real = time.time
    time.time = lambda: real() + step_s
    sys.addaudithook(watch(folder))
    sys.argv[1:3] = []
    from pscp.cli.start import pscp_run
    from pscp.transfer.lanes import worker

    worker._PAUSE_S = (0.02, 0.05)
    pscp_run()
