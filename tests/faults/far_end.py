"""A python3 for the far end where frames arrive late, and system calls wait or fail.

`far_end.py FOLDER PYTHON -IS -c STAGE` runs the agent as PYTHON would, with two things between:

- FOLDER/frames.json has rules as those of relay.py, and one more thing that they may do. hold: the
  frame, and all that comes after it, is kept until FOLDER/go is there, also when the connection
  has ended meanwhile, as by a kernel whose path stands still. FOLDER/held-NUMBER tells of it.
- FOLDER/calls.json has rules for system calls (calls.py).

FOLDER/ended-NUMBER is made when the agent of this connection has ended.

Runs with nothing but the standard library: python -I -S. Not here: who runs it (late.py).
"""

import contextlib
import json
import os
import select
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from faults.relay import POLL_S, Relay, Rule, take_number  # noqa: E402

DRAINED_BYTES = 1 << 16


class FarEnd(Relay):
    """What sshd starts for a connection."""

    def hold(self, rule: Rule, frame: bytearray) -> None:
        (self.folder / f"held-{self.number}").touch()
        coming = select.poll()
        coming.register(self.incoming.fd, select.POLLIN)
        has_ended = False
        while not (self.folder / "go").exists():
            if has_ended:
                time.sleep(POLL_S)
            elif coming.poll(1000 * POLL_S):
                has_ended = not self.incoming.more()

    def back(self, fd: int) -> None:
        """The agent's answers are taken even when nobody hears them, as a kernel takes them."""
        with contextlib.suppress(OSError):
            super().back(fd)
        while os.read(fd, DRAINED_BYTES):
            pass


def main() -> None:
    folder, python, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    number = take_number(folder)
    rules = json.loads((folder / "frames.json").read_text())
    argv = [python, "-I", "-S", str(HERE / "calls.py"), str(folder), str(number), words[-1]]
    status = FarEnd(folder, rules, number, False).run(argv)
    (folder / f"ended-{number}").touch()
    os._exit(status if status >= 0 else 255)


if __name__ == "__main__":
    main()
